#include "client/session/nccl_ras.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace coxswain {
namespace {

// What NCCL itself may wait for other hosts: less than we wait for it.
constexpr char kTimeout[] = "TIMEOUT 1\n";
constexpr size_t kMostLine = 256;

class RasConnection {
 public:
  RasConnection(std::string address, absl::Duration timeout)
      : address_(std::move(address)),
        deadline_(Clock::Real()->Now() + timeout) {}

  absl::Status Connect(const std::string& host, const std::string& port);
  absl::Status Send(absl::string_view text);
  // Up to its end, which is taken off.
  absl::StatusOr<std::string> ReadLine();
  // Up to the end of the connection, the time or the limit.
  std::string ReadRest();

 private:
  absl::Status Failed(absl::string_view what) const {
    return absl::UnavailableError(
        absl::StrCat("NCCL's RAS at ", address_, ": ", what));
  }
  // DEADLINE_EXCEEDED when the time is over first.
  absl::Status Await(short events) const;
  absl::Status ConnectTo(const addrinfo& remote);
  // OUT_OF_RANGE at the end.
  absl::Status ReadSome();

  const std::string address_;
  const absl::Time deadline_;
  UniqueFd socket_;
  std::string received_;
};

absl::Status RasConnection::Await(short events) const {
  pollfd entry = {socket_.get(), events, 0};
  while (true) {
    const absl::Duration left = deadline_ - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) break;
    const int64_t milliseconds =
        absl::ToInt64Milliseconds(std::min(left, absl::Minutes(1)));
    const int ready = poll(&entry, 1, static_cast<int>(milliseconds) + 1);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return Failed(strerror(errno));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("NCCL's RAS at ", address_, " did not answer in time"));
}

absl::Status RasConnection::ConnectTo(const addrinfo& remote) {
  socket_ = UniqueFd(
      socket(remote.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_.valid()) return Failed(strerror(errno));
  if (connect(socket_.get(), remote.ai_addr, remote.ai_addrlen) == 0) {
    return absl::OkStatus();
  }
  if (errno != EINPROGRESS) return Failed(strerror(errno));
  COXSWAIN_RETURN_IF_ERROR(Await(POLLOUT));
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? absl::OkStatus() : Failed(strerror(error));
}

absl::Status RasConnection::Connect(const std::string& host,
                                    const std::string& port) {
  // Looking a name up has no deadline.
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  // Null is the loopback, in both families.
  const char* const where = host == "localhost" ? nullptr : host.c_str();
  const int error = getaddrinfo(where, port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "NCCL_RAS_ADDR='", address_, "': ", gai_strerror(error),
        "; it must be localhost or an IP address, with a port number"));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> remotes(
      found, &freeaddrinfo);
  absl::Status last = Failed("no address");
  for (const addrinfo* remote = found; remote != nullptr;
       remote = remote->ai_next) {
    last = ConnectTo(*remote);
    if (last.ok()) return last;
  }
  return last;
}

absl::Status RasConnection::Send(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t sent =
        send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      text.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      COXSWAIN_RETURN_IF_ERROR(Await(POLLOUT));
    } else if (errno != EINTR) {
      return Failed(strerror(errno));
    }
  }
  return absl::OkStatus();
}

absl::Status RasConnection::ReadSome() {
  char buffer[4096];
  while (true) {
    COXSWAIN_RETURN_IF_ERROR(Await(POLLIN));
    const ssize_t got = recv(socket_.get(), buffer, sizeof(buffer), 0);
    if (got > 0) {
      received_.append(buffer, static_cast<size_t>(got));
      return absl::OkStatus();
    }
    if (got == 0) return absl::OutOfRangeError("the connection ended");
    if (errno != EAGAIN && errno != EINTR) return Failed(strerror(errno));
  }
}

absl::StatusOr<std::string> RasConnection::ReadLine() {
  size_t end = 0;
  while ((end = received_.find('\n')) == std::string::npos) {
    if (received_.size() > kMostLine)
      return Failed("its answer is not NCCL's RAS protocol");
    const absl::Status read = ReadSome();
    if (absl::IsOutOfRange(read)) return Failed("it closed the connection");
    COXSWAIN_RETURN_IF_ERROR(read);
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

std::string RasConnection::ReadRest() {
  absl::Status read;
  while (read.ok() && received_.size() <= kMostRasBytes) read = ReadSome();
  if (received_.size() > kMostRasBytes) {
    received_.resize(kMostRasBytes);
    absl::StrAppend(&received_, "\n(cut here: it is longer)\n");
  } else if (!absl::IsOutOfRange(read)) {
    absl::StrAppend(&received_, "\n(cut here: ", read.message(), ")\n");
  }
  return std::move(received_);
}

}  // namespace

absl::StatusOr<std::string> ReadNcclRas(const std::string& address,
                                        absl::Duration timeout) {
  const std::string where = address.empty() ? kNcclRasAddress : address;
  const size_t colon = where.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == where.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "NCCL_RAS_ADDR='", where, "' is not HOST:PORT, as in localhost:28028"));
  }
  std::string host = where.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  RasConnection ras(where, timeout);
  COXSWAIN_RETURN_IF_ERROR(ras.Connect(host, where.substr(colon + 1)));
  COXSWAIN_RETURN_IF_ERROR(ras.Send("CLIENT PROTOCOL 2\n"));
  COXSWAIN_ASSIGN_OR_RETURN(const std::string greeting, ras.ReadLine());
  if (!absl::StartsWithIgnoreCase(greeting, "SERVER PROTOCOL ")) {
    return absl::UnavailableError(absl::StrCat(
        "NCCL's RAS at ", where, ": its answer is not NCCL's RAS protocol"));
  }
  COXSWAIN_RETURN_IF_ERROR(ras.Send(kTimeout));
  // Whether it can set one or not.
  COXSWAIN_RETURN_IF_ERROR(ras.ReadLine().status());
  COXSWAIN_RETURN_IF_ERROR(ras.Send("VERBOSE STATUS\n"));
  return ras.ReadRest();
}

}  // namespace coxswain
