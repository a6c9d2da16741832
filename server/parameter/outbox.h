#ifndef COXSWAIN_SERVER_PARAMETER_OUTBOX_H_
#define COXSWAIN_SERVER_PARAMETER_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/parameter/byte_budget.h"
#include "server/parameter/parameter_limits.h"

namespace coxswain::server {

// A delivery to a rank: bytes of a tensor, or the error of an operation of its
// own.
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

// Holds the deliveries to one rank, in order, until its stream takes them. It
// holds references only, so a slow reader costs no memory but that of the
// chunks that others have received already, and that of the deliveries
// themselves. Both count against the job's budget. It ends with
// RESOURCE_EXHAUSTED past `max_bytes` of deliveries, and where the budget has
// no more. Thread-safe; holds no other lock while it is held itself.
class Outbox {
 public:
  // `on_ready` is called by Wake, on any thread and without a lock.
  explicit Outbox(std::function<void()> on_ready,
                  int64_t max_bytes = ParameterLimits().max_outbox_bytes)
      : on_ready_(std::move(on_ready)), max_bytes_(max_bytes) {}

  // Charges what waits to this budget. Before the first Add.
  void ChargeTo(std::shared_ptr<ByteBudget> budget) {
    MutexLock lock(&mutex_);
    charge_ = BudgetCharge(std::move(budget));
  }

  // Safe under any lock: calls nothing before Wake.
  void Add(Delivery delivery) {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    const int64_t cost = CostOf(delivery);
    absl::Status status;
    if (charge_.bytes() > max_bytes_ - cost) {
      status = ParameterLimitError("max_outbox_bytes", max_bytes_,
                                   "read what was asked for");
    } else {
      status = charge_.Grow(cost);
    }
    if (!status.ok()) return EndLocked(status);
    deliveries_.push_back(std::move(delivery));
  }
  // Ends the deliveries: nothing that waits is sent, and nothing comes later.
  // The first end counts.
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
    charge_.Shrink(CostOf(first));
    return first;
  }
  std::optional<absl::Status> ended() const {
    MutexLock lock(&mutex_);
    return end_;
  }

 private:
  static int64_t CostOf(const Delivery& delivery) {
    const auto bytes = static_cast<int64_t>(sizeof(Delivery));
    if (delivery.status.ok()) return bytes;
    return bytes + 2 * kAllocationBytes +
           static_cast<int64_t>(delivery.status.message().size());
  }
  void EndLocked(const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!end_.has_value()) end_ = why;
    deliveries_.clear();
    charge_.Release();
  }

  const std::function<void()> on_ready_;
  const int64_t max_bytes_;
  mutable Mutex mutex_;
  BudgetCharge charge_ ABSL_GUARDED_BY(mutex_);  // of the deliveries
  std::deque<Delivery> deliveries_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_OUTBOX_H_
