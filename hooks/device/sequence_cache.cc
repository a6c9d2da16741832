#include "hooks/device/sequence_cache.h"

#include <utility>

#include "absl/status/statusor.h"

namespace coxswain {

absl::Status SequenceCache::Run(DeviceQueue& queue, const Span& span,
                                int64_t part,
                                const std::function<absl::Status()>& enqueue) {
  const Key key(queue.stream(), span.data, span.count, span.dtype, part);
  const auto known = sequences_.find(key);
  if (known != sequences_.end()) return queue.Replay(*known->second);
  if (without_.count(queue.stream()) > 0) return enqueue();
  if (seen_.count(key) == 0) {
    if (seen_.size() < kMost) seen_.insert(key);
    return enqueue();
  }
  absl::StatusOr<std::unique_ptr<DeviceSequence>> recorded =
      queue.Record(enqueue);
  if (recorded.status().code() == absl::StatusCode::kUnimplemented) {
    without_.insert(queue.stream());
    return enqueue();
  }
  if (!recorded.ok()) return recorded.status();
  const DeviceSequence& sequence = **recorded;
  sequences_[key] = *std::move(recorded);
  return queue.Replay(sequence);
}

void SequenceCache::Clear() {
  sequences_.clear();
  seen_.clear();
  without_.clear();
}

}  // namespace coxswain
