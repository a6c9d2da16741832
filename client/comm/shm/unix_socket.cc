#include "client/comm/shm/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/comm/back_end.h"

namespace coxswain {
namespace {

constexpr int kBacklog = 128;
constexpr timeval kSendTimeout = {10, 0};

// A peer that does not take what is sent to it in time is EAGAIN.
absl::Status Translate(const char* what) {
  const int error = errno;
  const absl::Status status = SocketError(what, error);
  return error == EAGAIN ? absl::DeadlineExceededError(status.message())
                         : status;
}

// Returns the address, and its length.
absl::StatusOr<socklen_t> Address(absl::string_view name, sockaddr_un* out) {
  if (name.size() + 1 > sizeof(out->sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a socket name of ", name.size(), " bytes is too long"));
  }
  std::memset(out, 0, sizeof(*out));
  out->sun_family = AF_UNIX;
  // The leading zero stands for the abstract namespace.
  std::memcpy(out->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                name.size());
}

absl::Status Await(const UniqueFd& socket, absl::Duration timeout) {
  pollfd entry = {socket.get(), POLLIN, 0};
  const int64_t milliseconds = std::clamp<int64_t>(
      absl::ToInt64Milliseconds(timeout + absl::Microseconds(999)), 0,
      24 * 3600 * 1000);
  int ready = 0;
  do {
    ready = poll(&entry, 1, static_cast<int>(milliseconds));
  } while (ready < 0 && errno == EINTR);
  if (ready < 0) return Translate("waiting for a peer on this host");
  if (ready > 0) return absl::OkStatus();
  return absl::DeadlineExceededError("a peer on this host did not answer");
}

}  // namespace

absl::StatusOr<UniqueFd> ListenLocally(absl::string_view name) {
  sockaddr_un address;
  COXSWAIN_ASSIGN_OR_RETURN(const socklen_t length, Address(name, &address));
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Translate("creating a local socket");
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return Translate("listening for peers on this host");
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectLocally(absl::string_view name) {
  sockaddr_un address;
  COXSWAIN_ASSIGN_OR_RETURN(const socklen_t length, Address(name, &address));
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Translate("creating a local socket");
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendTimeout,
             sizeof(kSendTimeout));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return Translate("connecting to a peer on this host");
  }
  return fd;
}

absl::StatusOr<UniqueFd> AcceptLocally(const UniqueFd& listener,
                                       absl::Duration timeout) {
  COXSWAIN_RETURN_IF_ERROR(Await(listener, timeout));
  UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.valid()) return Translate("accepting a peer on this host");
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendTimeout,
             sizeof(kSendTimeout));
  return fd;
}

absl::Status CheckSameUser(const UniqueFd& socket) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return Translate("asking who a peer is");
  }
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("process ", peer.pid, " of user ", peer.uid,
                   " wants to share memory with this one of user ", geteuid(),
                   "; run the ranks of a host as one user"));
}

absl::Status SendMessage(const UniqueFd& socket, absl::string_view message,
                         int fd) {
  iovec part = {const_cast<char*>(message.data()), message.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(int));
  }
  while (sendmsg(socket.get(), &header, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return Translate("sending to a peer on this host");
  }
  return absl::OkStatus();
}

absl::Status SendMessageNow(const UniqueFd& socket, absl::string_view message) {
  if (send(socket.get(), message.data(), message.size(),
           MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    return Translate("sending to a peer on this host");
  }
  return absl::OkStatus();
}

void EndSending(const UniqueFd& socket) { shutdown(socket.get(), SHUT_WR); }

absl::StatusOr<LocalMessage> ReceiveMessage(const UniqueFd& socket,
                                            size_t limit,
                                            absl::Duration timeout) {
  COXSWAIN_RETURN_IF_ERROR(Await(socket, timeout));
  LocalMessage message;
  message.bytes.resize(limit);
  iovec part = {message.bytes.data(), limit};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t bytes =
      recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (bytes < 0) return Translate("receiving from a peer on this host");
  if (bytes == 0) return absl::UnavailableError("it closed the connection");
  const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  if (rights != nullptr && rights->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof(int));
    message.fd = UniqueFd(fd);
  }
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError("its message was too long");
  }
  message.bytes.resize(static_cast<size_t>(bytes));
  return message;
}

}  // namespace coxswain
