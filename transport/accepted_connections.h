#ifndef COXSWAIN_TRANSPORT_ACCEPTED_CONNECTIONS_H_
#define COXSWAIN_TRANSPORT_ACCEPTED_CONNECTIONS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/mutex.h"

namespace coxswain {

// The connections that a ConnectionAcceptor has given to gRPC, as far as they
// have not ended. gRPC owns their descriptors; here they are known by number
// and inode: the number is used again, the inode is not while it is open.
// Thread-safe.
class AcceptedConnections {
 public:
  explicit AcceptedConnections(size_t limit) : limit_(limit) {}

  // Before gRPC gets it. False if there are as many as may be, or after Cut().
  bool Add(int fd);
  bool cut() const;

  // Ends all of them, now: what was not sent yet is not sent. None is accepted
  // any more.
  void Cut();

  size_t limit() const { return limit_; }

 private:
  struct Connection {
    int fd;
    uint64_t device;
    uint64_t inode;
  };
  static bool IsOpen(const Connection& connection);

  const size_t limit_;
  mutable Mutex mutex_;
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex_);
};

// How many connections may be accepted where `wanted` are allowed: each is a
// descriptor, and whoever connects must not take those that the process needs
// for its disk. A quarter of what the process may have, 2048 at most, is left.
int ConnectionLimit(int wanted);
// The same for a process that may have `descriptors`.
int ConnectionLimit(int wanted, unsigned long descriptors);

}  // namespace coxswain

#endif  // COXSWAIN_TRANSPORT_ACCEPTED_CONNECTIONS_H_
