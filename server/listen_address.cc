#include "server/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace coxswain::server {
namespace {

std::string ToText(const ListenAddress& address) {
  return absl::StrCat(address.host, ":", address.port);
}

// The reason why this address cannot be bound; empty if it can.
std::string TryToBind(const addrinfo& info) {
  const int fd = socket(info.ai_family, info.ai_socktype, info.ai_protocol);
  if (fd < 0) return std::strerror(errno);
  // As gRPC does: ports of ended connections may be taken over.
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  std::string reason;
  if (bind(fd, info.ai_addr, info.ai_addrlen) != 0 || listen(fd, 1) != 0) {
    reason = std::strerror(errno);
  }
  close(fd);
  return reason;
}

}  // namespace

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  ListenAddress address;
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos ||
      !absl::SimpleAtoi(text.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the address to listen on must be HOST:PORT with a port of 0 to "
        "65535, not '",
        text, "'"));
  }
  address.host = std::string(text.substr(0, colon));
  if (address.host.empty()) address.host = "[::]";
  return address;
}

absl::Status ExplainListenFailure(const ListenAddress& address) {
  std::string host = address.host;
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), absl::StrCat(address.port).c_str(),
                               &hints, &found);
  std::string reason = code != 0 ? gai_strerror(code) : "";
  for (addrinfo* info = found; info != nullptr && reason.empty();
       info = info->ai_next) {
    reason = TryToBind(*info);
  }
  if (found != nullptr) freeaddrinfo(found);
  if (reason.empty()) reason = "it failed for a moment; try again";
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", ToText(address), ": ", reason));
}

}  // namespace coxswain::server
