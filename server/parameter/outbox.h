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
// others have received already, which count against the job's budget.
// Thread-safe; holds no other lock while it is held itself.
class Outbox {
 public:
  // `on_ready` is called by Wake, on any thread and without a lock.
  explicit Outbox(std::function<void()> on_ready)
      : on_ready_(std::move(on_ready)) {}

  // Safe under any lock: nobody is told before Wake.
  void Add(Delivery delivery) {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    deliveries_.push_back(std::move(delivery));
  }
  // Nothing comes after it, and nothing that waits is sent: the first end
  // counts.
  void End(const absl::Status& why) {
    MutexLock lock(&mutex_);
    if (!end_.has_value()) end_ = why;
    deliveries_.clear();
  }
  void Wake() const { on_ready_(); }

  std::optional<Delivery> Take() {
    MutexLock lock(&mutex_);
    if (deliveries_.empty()) return std::nullopt;
    Delivery first = std::move(deliveries_.front());
    deliveries_.pop_front();
    return first;
  }
  std::optional<absl::Status> ended() const {
    MutexLock lock(&mutex_);
    return end_;
  }

 private:
  const std::function<void()> on_ready_;
  mutable Mutex mutex_;
  std::deque<Delivery> deliveries_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_OUTBOX_H_
