#ifndef COXSWAIN_CLIENT_COMM_TCP_TCP_SOCKET_H_
#define COXSWAIN_CLIENT_COMM_TCP_TCP_SOCKET_H_

#include <poll.h>
#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace coxswain {

// TCP sockets that never block. Every failure of the system is translated here:
//   UNAVAILABLE         the other end is gone, or cannot be reached
//   RESOURCE_EXHAUSTED  no descriptors or memory are left
//   INVALID_ARGUMENT    an address that is none

// A numeric address. Host names are looked up by ListenTcp only.
struct TcpAddress {
  std::string host;
  int port = 0;
};

struct TcpListener {
  UniqueFd socket;
  TcpAddress address;
};
// Listens at a free port of an address of this machine, given by name or
// number.
absl::StatusOr<TcpListener> ListenTcp(const std::string& address);

// Returns an invalid descriptor where no process waits to be accepted.
absl::StatusOr<UniqueFd> AcceptTcp(const UniqueFd& listener);

// Begins to connect; once the socket can be written to, ConnectResult has the
// outcome.
absl::StatusOr<UniqueFd> BeginConnectTcp(const TcpAddress& address);
absl::Status ConnectResult(const UniqueFd& socket);

// Lets the system notice within a minute that the other end's machine is gone,
// on a connection over which nothing travels.
void KeepAlive(const UniqueFd& socket);

// Notifies the other end that nothing more will come; what was sent before
// still arrives.
void EndSendingTcp(const UniqueFd& socket);

// Moves what the system takes, or has, at once; returns how many bytes, 0 where
// it would have had to wait. The end of a connection is UNAVAILABLE; there is
// space for one byte at least. With `more` a packet that is not full may wait
// for the next call, which must come.
absl::StatusOr<int64_t> SendSome(const UniqueFd& socket, const iovec* parts,
                                 int count, bool more = false);
absl::StatusOr<int64_t> ReceiveSome(const UniqueFd& socket, void* data,
                                    int64_t bytes);

// Ends waits for sockets from any thread: its descriptor is readable from a
// Raise on until the next Clear.
class WakeFd {
 public:
  WakeFd();
  bool valid() const { return fd_.valid(); }
  int get() const { return fd_.get(); }
  void Raise() const;
  void Clear() const;

 private:
  UniqueFd fd_;
};

// Waits until one of the entries is ready, or `end` (by Clock::Real()). Returns
// how many are; may return 0 early.
int PollUntil(std::vector<pollfd>* entries, absl::Time end);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_TCP_SOCKET_H_
