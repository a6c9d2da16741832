#ifndef COXSWAIN_CLIENT_COMM_SHM_INBOX_H_
#define COXSWAIN_CLIENT_COMM_SHM_INBOX_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "client/comm/shm/peers.h"
#include "client/comm/shm/segment.h"

namespace coxswain {

// What has arrived from the other ranks of the host: their segments, and
// messages that wait to be received. Filled by the thread of Peers, read by
// those that run operations. Thread-safe.
class Inbox {
 public:
  // A message that has been received.
  struct Message {
    uint64_t id = 0;
    int64_t bytes = 0;
    Segment memory;
  };
  static constexpr int kMaxSegments = 4096;  // of one peer
  static constexpr int kMaxMessages = 256;   // of one peer, not yet received

  // Takes a frame of kind kSegment, kForget, kMessage or kTaken. Fails with
  // RESOURCE_EXHAUSTED past the limits, and with INVALID_ARGUMENT for a frame
  // that is not valid: the peer counts as broken then.
  absl::Status Take(int peer, const PeerFrame& frame, UniqueFd fd);

  // Returns the peer's segment, once it has arrived; the memory stays mapped
  // while the pointer lives.
  absl::StatusOr<std::shared_ptr<Segment>> AwaitSegment(int peer, uint64_t id,
                                                        absl::Duration timeout);

  // Receives of one (peer, tag) take messages in the order of their tickets.
  uint64_t TakeTicket(int peer, uint32_t tag);
  absl::StatusOr<Message> AwaitMessage(int peer, uint32_t tag, uint64_t ticket,
                                       absl::Duration timeout);

  // Waits until the peer has acknowledged the message.
  absl::Status AwaitTaken(int peer, uint64_t id, absl::Duration timeout);

  // Ends all waits, now and later, with ABORTED.
  void Stop();

 private:
  struct Channel {  // of a (peer, tag)
    uint64_t tickets = 0;
    uint64_t messages = 0;
    std::map<uint64_t, Message> waiting;
  };

  absl::Status TakeSegment(int peer, const PeerFrame& frame, UniqueFd fd);
  absl::Status TakeMessage(int peer, const PeerFrame& frame, UniqueFd fd);
  template <typename Condition>
  absl::Status Await(absl::Duration timeout, Condition condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int, std::map<uint64_t, std::shared_ptr<Segment>>> segments_
      ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<int, uint32_t>, Channel> channels_ ABSL_GUARDED_BY(mutex_);
  std::map<int, int> waiting_ ABSL_GUARDED_BY(mutex_);  // messages, by peer
  std::set<std::pair<int, uint64_t>> taken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_INBOX_H_
