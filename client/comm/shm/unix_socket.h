#ifndef COXSWAIN_CLIENT_COMM_SHM_UNIX_SOCKET_H_
#define COXSWAIN_CLIENT_COMM_SHM_UNIX_SOCKET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace coxswain {

// Unix sockets that preserve the bounds of messages (SOCK_SEQPACKET), in the
// abstract namespace: names without a file, which live in the network namespace
// and end with the socket. Every error of the system is translated here.

// Listens at a name.
absl::StatusOr<UniqueFd> ListenLocally(absl::string_view name);

// Fails with UNAVAILABLE if no process listens there.
absl::StatusOr<UniqueFd> ConnectLocally(absl::string_view name);

// Waits for a connection; fails with DEADLINE_EXCEEDED.
absl::StatusOr<UniqueFd> AcceptLocally(const UniqueFd& listener,
                                       absl::Duration timeout);

// Fails with PERMISSION_DENIED unless the peer is a process of the same user.
absl::Status CheckSameUser(const UniqueFd& socket);

// Sends one message, with a descriptor unless `fd` is -1. Fails with
// UNAVAILABLE if the peer has ended, and with DEADLINE_EXCEEDED if it does not
// read for 10 seconds.
absl::Status SendMessage(const UniqueFd& socket, absl::string_view message,
                         int fd);

// Sends without a descriptor and without waiting. Fails with RESOURCE_EXHAUSTED
// or DEADLINE_EXCEEDED if the socket's buffer is full.
absl::Status SendMessageNow(const UniqueFd& socket, absl::string_view message);

// Notifies the peer that nothing more will be sent.
void EndSending(const UniqueFd& socket);

struct LocalMessage {
  std::string bytes;
  UniqueFd fd;  // if one came with it
};
// Returns the next message, of at most `limit` bytes; waits for it up to
// `timeout`. Fails with UNAVAILABLE if the peer has ended, and with
// INVALID_ARGUMENT if the message is longer.
absl::StatusOr<LocalMessage> ReceiveMessage(const UniqueFd& socket,
                                            size_t limit,
                                            absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_UNIX_SOCKET_H_
