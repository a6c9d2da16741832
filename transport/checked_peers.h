#ifndef COXSWAIN_TRANSPORT_CHECKED_PEERS_H_
#define COXSWAIN_TRANSPORT_CHECKED_PEERS_H_

#include <cstddef>
#include <deque>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace coxswain {

// Tells the first call of a connection from later ones, which gRPC does not:
// what is checked once for each connection is checked with its first call.
// Connections are known by their peer's address and port, which a connection
// that comes later may have again: the acceptor forgets them then. Thread-safe.
class CheckedPeers {
 public:
  // Remembers so many; the oldest is checked once more.
  explicit CheckedPeers(size_t limit = 1 << 17) : limit_(limit) {}

  // Called for each call, with grpc::ServerContext::peer(). Returns whether the
  // connection has passed the check.
  bool Contains(absl::string_view peer) const;
  // Called once the connection has passed the check.
  void Add(absl::string_view peer);
  // Called for a connection before gRPC reads from it.
  void Forget(int fd);

 private:
  const size_t limit_;
  mutable Mutex mutex_;
  std::set<std::string> peers_ ABSL_GUARDED_BY(mutex_);
  // In the order of their coming, with such that have been forgotten.
  std::deque<std::string> order_ ABSL_GUARDED_BY(mutex_);
};

// "127.0.0.1:4000" or "[::1]:4000" of gRPC's "ipv4:127.0.0.1:4000" and
// "ipv6:%5B::1%5D:4000".
std::string AddressOfPeer(absl::string_view peer);

}  // namespace coxswain

#endif  // COXSWAIN_TRANSPORT_CHECKED_PEERS_H_
