#include "client/comm/tcp/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/comm/back_end.h"

namespace coxswain {
namespace {

constexpr int kListenBacklog = 1024;
// Until the first probe of an idle connection, between probes, and how many.
constexpr int kIdleSeconds = 15;
constexpr int kProbeSeconds = 5;
constexpr int kProbes = 6;

void SetOption(const UniqueFd& socket, int level, int option, int value) {
  setsockopt(socket.get(), level, option, &value, sizeof(value));
}

// Returns whether `other`, to which a socket is or will be connected, is on
// this machine.
bool IsLocal(const UniqueFd& socket, const sockaddr* other) {
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) !=
          0 ||
      own.ss_family != other->sa_family) {
    return false;
  }
  // The system sends from the address that it sends to, where that is its own.
  if (own.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(own).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(other)->sin_addr.s_addr;
  }
  return own.ss_family == AF_INET6 &&
         IN6_ARE_ADDR_EQUAL(
             &reinterpret_cast<const sockaddr_in6&>(own).sin6_addr,
             &reinterpret_cast<const sockaddr_in6*>(other)->sin6_addr);
}

// Within a machine nothing is congested, but a congestion control that paces
// what is sent, as BBR does, halves the rate by its timers. Reno, which every
// process may choose on every system, sends as long as the other end takes it.
// Between machines it is the system's choice.
void SetCongestionControl(const UniqueFd& socket, const sockaddr* other) {
  if (!IsLocal(socket, other)) return;
  constexpr char kReno[] = "reno";
  setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, kReno,
             sizeof(kReno) - 1);
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const std::string& host, int port,
                                    int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error == 0) return AddressList(found, &freeaddrinfo);
  return absl::InvalidArgumentError(
      absl::StrCat("the address '", host, "': ", gai_strerror(error)));
}

absl::StatusOr<UniqueFd> OpenSocket(int family) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return SocketError("creating a socket", errno);
  return fd;
}

absl::StatusOr<TcpAddress> AddressOf(const UniqueFd& socket) {
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) !=
          0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&own), length, host, sizeof(host),
                  port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return absl::UnavailableError(
        "the system does not name a socket's address");
  }
  return TcpAddress{host, std::atoi(port)};
}

}  // namespace

absl::StatusOr<TcpListener> ListenTcp(const std::string& address) {
  COXSWAIN_ASSIGN_OR_RETURN(const AddressList found,
                            Resolve(address, 0, AI_PASSIVE));
  TcpListener listener;
  COXSWAIN_ASSIGN_OR_RETURN(listener.socket, OpenSocket(found->ai_family));
  if (bind(listener.socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      listen(listener.socket.get(), kListenBacklog) != 0) {
    return SocketError(
        absl::StrCat("listening for peers at ", address,
                     ", which must be an address of this machine"),
        errno);
  }
  COXSWAIN_ASSIGN_OR_RETURN(listener.address, AddressOf(listener.socket));
  return listener;
}

absl::StatusOr<UniqueFd> AcceptTcp(const UniqueFd& listener) {
  sockaddr_storage caller = {};
  socklen_t length = sizeof(caller);
  auto* const address = reinterpret_cast<sockaddr*>(&caller);
  UniqueFd fd(
      accept4(listener.get(), address, &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    // The others are errors of the connection, which has ended already.
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM &&
        errno != ENOBUFS) {
      return fd;
    }
    return SocketError("accepting a peer", errno);
  }
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetCongestionControl(fd, address);
  return fd;
}

absl::StatusOr<UniqueFd> BeginConnectTcp(const TcpAddress& address) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const AddressList found,
      Resolve(address.host, address.port, AI_NUMERICHOST));
  COXSWAIN_ASSIGN_OR_RETURN(UniqueFd fd, OpenSocket(found->ai_family));
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0 &&
      errno != EINPROGRESS) {
    return SocketError(absl::StrCat("connecting to ", address.host), errno);
  }
  SetCongestionControl(fd, found->ai_addr);
  return fd;
}

absl::Status ConnectResult(const UniqueFd& socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
    error = errno;
  }
  if (error == 0) return absl::OkStatus();
  return SocketError("connecting", error);
}

void KeepAlive(const UniqueFd& socket) {
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

void EndSendingTcp(const UniqueFd& socket) { shutdown(socket.get(), SHUT_WR); }

absl::StatusOr<int64_t> SendSome(const UniqueFd& socket, const iovec* parts,
                                 int count, bool more) {
  msghdr header = {};
  header.msg_iov = const_cast<iovec*>(parts);
  header.msg_iovlen = static_cast<size_t>(count);
  while (true) {
    const ssize_t sent =
        sendmsg(socket.get(), &header,
                MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return SocketError("sending", errno);
  }
}

absl::StatusOr<int64_t> ReceiveSome(const UniqueFd& socket, void* data,
                                    int64_t bytes) {
  if (bytes <= 0) {
    return absl::InternalError(
        absl::StrCat("receiving ", bytes, " bytes makes no sense"));
  }
  while (true) {
    const ssize_t received =
        recv(socket.get(), data, static_cast<size_t>(bytes), MSG_DONTWAIT);
    if (received > 0) return received;
    if (received == 0) {
      return absl::UnavailableError("it closed the connection");
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return SocketError("receiving", errno);
  }
}

WakeFd::WakeFd() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void WakeFd::Raise() const {
  const uint64_t one = 1;
  (void)!write(fd_.get(), &one, sizeof(one));
}

void WakeFd::Clear() const {
  uint64_t raised = 0;
  (void)!read(fd_.get(), &raised, sizeof(raised));
}

int PollUntil(std::vector<pollfd>* entries, absl::Time end) {
  // At most a minute, so that no clock makes it more than the system takes.
  const absl::Duration left = std::clamp(
      end - Clock::Real()->Now(), absl::ZeroDuration(), absl::Minutes(1));
  const timespec timeout = absl::ToTimespec(left);
  const int ready = ppoll(entries->data(), entries->size(), &timeout, nullptr);
  return std::max(ready, 0);
}

}  // namespace coxswain
