#ifndef COXSWAIN_SERVER_PARAMETER_OUTBOX_H_
#define COXSWAIN_SERVER_PARAMETER_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/parameter/byte_budget.h"
#include "server/parameter/parameter_limits.h"

namespace coxswain::server {

// Something that a rank is sent: bytes of a tensor, or how an operation of its
// own has failed.
struct Delivery {
  uint64_t operation = 0;
  absl::Status status;  // not OK: the operation's end, and no bytes
  int64_t offset = 0;   // in the tensor
  // Bytes [begin, begin + size) of a chunk; null where there are none.
  ChunkPtr chunk;
  size_t begin = 0;
  size_t size = 0;

  absl::string_view bytes() const {
    if (chunk == nullptr) return {};
    return absl::string_view(chunk->bytes).substr(begin, size);
  }
};

// What one rank is to be sent, in order, until its stream takes it. It holds
// references only, so a slow reader costs no memory but that of the chunks that
// others have received already, which count against the job's budget, and that
// of the deliveries themselves: past `max_bytes` of these it ends with
// RESOURCE_EXHAUSTED.
// Thread-safe; holds no other lock while it is held itself.
class Outbox {
 public:
  // `on_ready` is called by Wake, on any thread and without a lock.
  explicit Outbox(std::function<void()> on_ready,
                  int64_t max_bytes = ParameterLimits().max_outbox_bytes)
      : on_ready_(std::move(on_ready)), max_bytes_(max_bytes) {}

  // Safe under any lock: nobody is told before Wake.
  void Add(Delivery delivery) {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    bytes_ += CostOf(delivery);
    deliveries_.push_back(std::move(delivery));
    if (bytes_ <= max_bytes_) return;
    EndLocked(ParameterLimitError("max_outbox_bytes", max_bytes_,
                                  "read what was asked for"));
  }
  // Nothing comes after it, and nothing that waits is sent: the first end
  // counts.
  void End(const absl::Status& why) {
    MutexLock lock(&mutex_);
    EndLocked(why);
  }
  void Wake() const { on_ready_(); }

  std::optional<Delivery> Take() {
    MutexLock lock(&mutex_);
    if (deliveries_.empty()) return std::nullopt;
    Delivery first = std::move(deliveries_.front());
    deliveries_.pop_front();
    bytes_ -= CostOf(first);
    return first;
  }
  std::optional<absl::Status> ended() const {
    MutexLock lock(&mutex_);
    return end_;
  }

 private:
  static int64_t CostOf(const Delivery& delivery) {
    return static_cast<int64_t>(sizeof(Delivery) +
                                delivery.status.message().size());
  }
  void EndLocked(const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!end_.has_value()) end_ = why;
    deliveries_.clear();
    bytes_ = 0;
  }

  const std::function<void()> on_ready_;
  const int64_t max_bytes_;
  mutable Mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of the deliveries
  std::deque<Delivery> deliveries_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_OUTBOX_H_
