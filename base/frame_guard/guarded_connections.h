#ifndef COXSWAIN_BASE_FRAME_GUARD_GUARDED_CONNECTIONS_H_
#define COXSWAIN_BASE_FRAME_GUARD_GUARDED_CONNECTIONS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/log_rate.h"
#include "base/mutex.h"

namespace coxswain {

// The connections to gRPC servers of a process, and which of them are to end:
// those that no client needs (FrameScanner), and those of whoever takes more of
// what all share than others do. For the guard, which tells it what comes.
// Thread-safe; what comes on one connection is told by one thread at a time.
class GuardedConnections {
 public:
  struct Limits {
    // What strangers may, until they are known. All of a connection counts;
    // past the first bytes of each they share some.
    int64_t stranger_calls = 64;
    int64_t stranger_bytes = 33 << 20;  // a message, and a little
    int64_t stranger_free_bytes = 64 << 10;
    int64_t strangers_bytes = 256 << 20;

    // What all connections may make gRPC hold: bytes of messages
    // (FrameScanner::held_bytes), and so many for each call past the first few
    // of a connection. Past it the one ends that holds most, unless that is no
    // more than everybody may. Much, because a large job that waits for its
    // last worker holds all of its manifests.
    int64_t held_bytes = 512 << 20;
    int64_t own_held_bytes = 2 << 20;  // a chunk of a shard, and the next one
    int64_t own_calls = 64;
    int64_t bytes_of_a_call = 16 << 10;

    // Calls that clients reset: so many at once, and so many in each second.
    // Past it whoever resets another one ends, unless it has reset few.
    int64_t resets = 8192;
    int64_t resets_per_second = 4096;
    int64_t own_resets = 32;
    int64_t own_resets_per_second = 4;
  };
  class Connection;

  GuardedConnections(const Limits& limits, const Clock* clock);
  ~GuardedConnections();

  // Who comes to this port from now on is a stranger at first. As often as it
  // is guarded, it is to be released.
  void Guard(int port);
  void Release(int port);

  // `end` ends it, for whoever reads it; not called after Remove, must not
  // block.
  std::shared_ptr<Connection> Add(absl::string_view peer, int local_port,
                                  std::function<void()> end);
  void Remove(const std::shared_ptr<Connection>& connection);

  // Instead of Limits::held_bytes.
  void SetMaxHeld(int64_t bytes) { max_held_ = bytes; }

  // What has come, before gRPC gets it. An error if the connection is over.
  absl::Status Scan(Connection* connection, absl::string_view bytes);
  // gRPC has ended a call, whichever way.
  void EndCall(Connection* connection, uint32_t stream);

  // By what a call's context says of its peer.
  bool IsStranger(const std::string& peer) const;
  void Know(const std::string& peer);

  // Connections that were ended.
  int64_t ended() const { return ended_; }
  // What gRPC holds for all of them.
  int64_t held() const { return held_; }

 private:
  absl::Status Look(Connection* connection, absl::string_view bytes);
  // With the connection's lock.
  absl::Status CountStranger(Connection* connection, size_t size);
  absl::Status CountResets(Connection* connection, int64_t count);
  void CountHeld(Connection* connection);
  void Forget(Connection* connection);

  void EndHeaviest();
  void SayEnded(const Connection& connection, absl::string_view reason);

  const Limits limits_;
  const Clock* const clock_;
  LogRate ended_log_;

  mutable Mutex mutex_;  // taken before that of a connection
  std::multiset<int> ports_ ABSL_GUARDED_BY(mutex_);
  std::unordered_set<std::shared_ptr<Connection>> all_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::shared_ptr<Connection>> strangers_
      ABSL_GUARDED_BY(mutex_);
  // Nobody was heavy enough when so much was held.
  int64_t none_heavy_at_ ABSL_GUARDED_BY(mutex_) = 0;

  struct Resets;
  const std::unique_ptr<Resets> resets_;
  std::atomic<int64_t> strangers_bytes_{0};
  std::atomic<int64_t> held_{0};
  std::atomic<int64_t> max_held_;
  std::atomic<int64_t> ended_{0};
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_FRAME_GUARD_GUARDED_CONNECTIONS_H_
