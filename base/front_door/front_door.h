#ifndef COXSWAIN_BASE_FRONT_DOOR_FRONT_DOOR_H_
#define COXSWAIN_BASE_FRONT_DOOR_FRONT_DOOR_H_

#include <chrono>
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
#include "base/front_door/admitted_connections.h"
#include "base/front_door/listen_address.h"
#include "base/log_rate.h"
#include "base/unique_fd.h"

namespace coxswain {

// With what a connection begins.
enum class Greeting {
  kHttp2,  // the client's preface of HTTP/2 (RFC 9113, 3.4)
  kTls,    // a ClientHello (RFC 8446, 5.1)
};

// Accepts a server's connections and lets in those that begin with the right
// greeting, which it leaves unread. All others are closed and logged, once a
// minute for each address: gRPC would say nothing, and it would hold a silent
// connection for minutes. One that says nothing and hangs up only looked
// whether the port is open, and is not worth a line.
//
// Owned by whoever owns the gRPC server. One thread of its own, which runs from
// Open() to the destructor. It waits in the system, whose clock its deadlines
// follow.
class FrontDoor {
 public:
  struct Limits {
    // Connections that have not greeted yet; one more closes the oldest.
    int max_waiting_connections = 1024;
    absl::Duration greeting_timeout = absl::Seconds(5);
    // A connection is lost if what was sent is not acknowledged in this time.
    absl::Duration keepalive_timeout = absl::Seconds(5);
  };

  // Takes over a connection: non-blocking, its greeting unread. Called on the
  // door's thread; must not block.
  using Admit = std::function<void(UniqueFd connection)>;

  // Whom it lets in is added to `admitted` first. UNAVAILABLE if the system has
  // no more descriptors.
  static absl::StatusOr<std::unique_ptr<FrontDoor>> Open(
      Listeners listeners, const Limits& limits, Admit admit,
      std::shared_ptr<AdmittedConnections> admitted,
      Greeting greeting = Greeting::kHttp2);

  // Stops listening and closes the connections that still wait. No connection
  // is let in afterwards; those that were, stay.
  ~FrontDoor();
  FrontDoor(const FrontDoor&) = delete;
  FrontDoor& operator=(const FrontDoor&) = delete;

 private:
  using Time = std::chrono::steady_clock::time_point;

  struct Waiting {
    UniqueFd fd;
    std::string peer;  // the address alone
    Time deadline;
  };

  FrontDoor(Listeners listeners, const Limits& limits, Admit admit,
            std::shared_ptr<AdmittedConnections> admitted, Greeting greeting);

  bool Watch(int fd, uint64_t id, uint32_t events);
  void Run();
  int NextWaitMs() const;
  void Listen(bool on);
  void AcceptFrom(int listener);
  void Add(UniqueFd fd, std::string peer);
  void Look(uint64_t id, bool hung_up);
  void LetIn(Waiting connection);
  void Refuse(uint64_t id, absl::string_view reason);
  void RefuseLate(Time now);

  const Listeners listeners_;
  const Limits limits_;
  const Admit admit_;
  const std::shared_ptr<AdmittedConnections> admitted_;
  const Greeting greeting_;
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

#endif  // COXSWAIN_BASE_FRONT_DOOR_FRONT_DOOR_H_
