#include "transport/listen_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

// A port that is free for one address of a host may be taken for another.
constexpr int kFreePortAttempts = 16;

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
};

bool operator==(const SocketAddress& a, const SocketAddress& b) {
  return a.length == b.length &&
         std::memcmp(&a.storage, &b.storage, a.length) == 0;
}

// The port is at the same place in both families.
in_port_t* PortOf(SocketAddress* address) {
  return &reinterpret_cast<sockaddr_in*>(&address->storage)->sin_port;
}

bool IsWildcard(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    return IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr);
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
  return v4.sin_addr.s_addr == htonl(INADDR_ANY);
}

// The result of getaddrinfo: 0, or a code of its own.
int Resolve(absl::string_view host, std::vector<SocketAddress>* addresses) {
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(std::string(host).c_str(), "0", &hints, &found);
  if (code != 0) return code;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    address.length = info->ai_addrlen;
    // A hosts file may name an address twice.
    if (std::find(addresses->begin(), addresses->end(), address) ==
        addresses->end()) {
      addresses->push_back(address);
    }
  }
  freeaddrinfo(found);
  return 0;
}

void SetOption(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

// Returns 0 or the errno of the call that failed.
int ListenOn(SocketAddress address, Listeners* listeners) {
  *PortOf(&address) = htons(listeners->port);
  UniqueFd fd(socket(address.storage.ss_family,
                     SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno;
  // Ports of ended connections may be taken over: a restart need not wait.
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.storage.ss_family == AF_INET6) {
    SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  auto* const name = reinterpret_cast<sockaddr*>(&address.storage);
  if (bind(fd.get(), name, address.length) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0 ||
      getsockname(fd.get(), name, &address.length) != 0) {
    return errno;
  }
  listeners->port = ntohs(*PortOf(&address));
  listeners->sockets.push_back(std::move(fd));
  return 0;
}

// A host without IPv6 may still have a name for an address of it.
bool IsAbsent(int error) {
  return error == EAFNOSUPPORT || error == EADDRNOTAVAIL;
}

int ListenOnAll(const std::vector<SocketAddress>& addresses,
                Listeners* listeners) {
  int first_error = 0;
  for (const SocketAddress& address : addresses) {
    const int error = ListenOn(address, listeners);
    if (error != 0 && !IsAbsent(error)) return error;
    if (error == 0 && IsWildcard(address)) return 0;  // it covers the rest
    if (first_error == 0) first_error = error;
  }
  return listeners->sockets.empty() ? first_error : 0;
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

absl::StatusOr<Listeners> Listen(const ListenAddress& address) {
  const auto failure = [&](absl::string_view reason) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", address.host, ":", address.port, ": ", reason));
  };
  std::vector<SocketAddress> addresses;
  int code = Resolve(address.host, &addresses);
  if (code == 0 &&
      std::any_of(addresses.begin(), addresses.end(), IsWildcard)) {
    addresses.clear();
    code = Resolve("::", &addresses);
    if (code == 0) code = Resolve("0.0.0.0", &addresses);
  }
  if (code != 0) return failure(gai_strerror(code));
  if (addresses.empty()) return failure("it has no IPv4 or IPv6 address");

  int error = 0;
  for (int attempt = 0; attempt < kFreePortAttempts; ++attempt) {
    Listeners listeners;
    listeners.port = address.port;
    error = ListenOnAll(addresses, &listeners);
    if (error == 0) return listeners;
    if (address.port != 0 || error != EADDRINUSE) break;
  }
  return failure(std::strerror(error));
}

}  // namespace coxswain
