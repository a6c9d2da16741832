#ifndef COXSWAIN_CLIENT_COMM_SHM_UNIX_SOCKET_H_
#define COXSWAIN_CLIENT_COMM_SHM_UNIX_SOCKET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace coxswain {

// Unix sockets that keep the bounds of messages (SOCK_SEQPACKET), in the
// abstract namespace: names without a file, which live in the network namespace
// and go with the socket. Every failure of the system is translated here.

// Listens at a name.
absl::StatusOr<UniqueFd> ListenLocally(absl::string_view name);

// UNAVAILABLE: no process listens there.
absl::StatusOr<UniqueFd> ConnectLocally(absl::string_view name);

// Waits for a connection; DEADLINE_EXCEEDED.
absl::StatusOr<UniqueFd> AcceptLocally(const UniqueFd& listener,
                                       absl::Duration timeout);

// PERMISSION_DENIED unless the other end is a process of this one's user.
absl::Status CheckSameUser(const UniqueFd& socket);

// Sends one message, with a descriptor unless `fd` is -1. UNAVAILABLE if the
// other end is gone, DEADLINE_EXCEEDED if it does not read for 10 seconds.
absl::Status SendMessage(const UniqueFd& socket, absl::string_view message,
                         int fd);

// The same without a descriptor and without waiting: RESOURCE_EXHAUSTED or
// DEADLINE_EXCEEDED where there is no room.
absl::Status SendMessageNow(const UniqueFd& socket, absl::string_view message);

// Notifies the other end that nothing more will come.
void EndSending(const UniqueFd& socket);

struct LocalMessage {
  std::string bytes;
  UniqueFd fd;  // if one came with it
};
// Returns the next message, of at most `limit` bytes; waits for it up to
// `timeout`. UNAVAILABLE if the other end is gone, INVALID_ARGUMENT if it is
// longer.
absl::StatusOr<LocalMessage> ReceiveMessage(const UniqueFd& socket,
                                            size_t limit,
                                            absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_UNIX_SOCKET_H_
