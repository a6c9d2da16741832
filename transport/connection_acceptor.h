#ifndef COXSWAIN_TRANSPORT_CONNECTION_ACCEPTOR_H_
#define COXSWAIN_TRANSPORT_CONNECTION_ACCEPTOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "transport/listen_address.h"

namespace coxswain {

// With what a connection begins.
enum class Preface {
  kHttp2,  // the client's preface of HTTP/2 (RFC 9113, 3.4)
  kTls,    // a ClientHello (RFC 8446, 5.1)
  kHttp1,  // all of a request without a body (RFC 9112, 2.1)
};

// The open connections that a ConnectionAcceptor has passed to gRPC. gRPC owns
// their descriptors; here they are identified by number and inode: the number
// is used again, the inode is not while it is open. Thread-safe.
class AcceptedConnections {
 public:
  explicit AcceptedConnections(size_t limit) : limit_(limit) {}

  // Called before gRPC receives it. Returns false at the limit, or after Cut().
  bool Add(int fd);
  bool cut() const;

  // Ends all of them at once: what was not sent yet is lost. None is accepted
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

// Returns how many connections may be accepted where `wanted` are allowed: each
// is a descriptor, and clients must not use up those that the process needs for
// its disk. A quarter of what the process may have, 2048 at most, is left.
int ConnectionLimit(int wanted);
// The same for a process that may have `descriptors`.
int ConnectionLimit(int wanted, unsigned long descriptors);

// Accepts a server's connections and hands over those that begin with the right
// preface, which it leaves unread. All others are closed and logged, once a
// minute for each address: gRPC would log nothing, and would hold a silent
// connection for minutes. One that sends nothing and hangs up only looked
// whether the port is open, and is not worth a line.
//
// Owned by what owns the server. One thread of its own, which runs from Open()
// to the destructor. It waits in the system, whose clock its deadlines follow.
class ConnectionAcceptor {
 public:
  // Bytes of a request, with Preface::kHttp1.
  static constexpr size_t kMaxHttpRequest = 2048;

  struct Limits {
    // Connections whose preface is not whole; one more closes the oldest.
    int max_waiting_connections = 1024;
    absl::Duration preface_timeout = absl::Seconds(5);
    // A connection is lost if what was sent is not acknowledged in this time.
    absl::Duration keepalive_timeout = absl::Seconds(5);
  };

  // Takes over a connection: non-blocking, its preface unread. Called on the
  // acceptor's thread; must not block.
  using Accept = std::function<void(UniqueFd connection)>;

  // Starts the thread. A connection is added to `accepted` before it is handed
  // over. Fails with UNAVAILABLE if the system has no more descriptors.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Open(
      Listeners listeners, const Limits& limits, Accept accept,
      std::shared_ptr<AcceptedConnections> accepted,
      Preface preface = Preface::kHttp2);

  // Stops listening and closes the connections that still wait. None is handed
  // over afterwards; those that were, stay.
  ~ConnectionAcceptor();
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

 private:
  using Time = std::chrono::steady_clock::time_point;

  struct Waiting {
    UniqueFd fd;
    std::string peer;  // the address alone
    Time deadline;
  };

  ConnectionAcceptor(Listeners listeners, const Limits& limits, Accept accept,
                     std::shared_ptr<AcceptedConnections> accepted,
                     Preface preface);

  bool Watch(int fd, uint64_t id, uint32_t events);
  void Run();
  int NextWaitMs() const;
  void Listen(bool on);
  void AcceptFrom(int listener);
  void Add(UniqueFd fd, std::string peer);
  void Look(uint64_t id, bool hung_up);
  void HandOver(Waiting connection);
  void Refuse(uint64_t id, absl::string_view reason);
  void RefuseLate(Time now);

  const Listeners listeners_;
  const Limits limits_;
  const Accept accept_;
  const std::shared_ptr<AcceptedConnections> accepted_;
  const Preface preface_;
  UniqueFd epoll_;
  UniqueFd wake_;

  // The rest is the thread's own.
  uint64_t next_id_;
  std::map<uint64_t, Waiting> waiting_;  // the oldest first
  bool listening_ = true;
  Time listen_again_;
  LogRate refused_{"connection_refused"};
  LogRate not_accepted_{"accept_failed"};

  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TRANSPORT_CONNECTION_ACCEPTOR_H_
