#include "hooks/device/device_exchange.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

class DeviceExchange : public Exchange {
 public:
  DeviceExchange(const Bucket& bucket, DeviceQueue& queue,
                 std::function<absl::Status()> enqueue)
      : bucket_(bucket), queue_(queue), enqueue_(std::move(enqueue)) {}

  absl::StatusOr<WorkPtr> Advance() override {
    if (std::exchange(started_, true)) return WorkPtr();
    COXSWAIN_RETURN_IF_ERROR(AwaitGradients(bucket_, queue_));
    COXSWAIN_RETURN_IF_ERROR(enqueue_());
    return queue_.Mark();
  }

 private:
  const Bucket bucket_;
  DeviceQueue& queue_;
  const std::function<absl::Status()> enqueue_;
  bool started_ = false;
};

}  // namespace

absl::StatusOr<DeviceQueue*> QueueFor(absl::string_view hook,
                                      const Bucket& bucket,
                                      Communicator& communicator) {
  const int device = bucket.data.device.index;
  DeviceQueue* const queue = communicator.device_queue();
  if (queue == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hook ", hook, ": bucket ", bucket.index, " is in the memory of GPU ",
        device, ", and the ", communicator.backend(),
        " back end moves CPU memory only; use the nccl back end, or keep the "
        "model on the CPU"));
  }
  if (queue->runtime().device() == bucket.data.device) return queue;
  return absl::InvalidArgumentError(absl::StrCat(
      "hook ", hook, ": bucket ", bucket.index, " is in the memory of GPU ",
      device, ", and the ", communicator.backend(), " communicator is GPU ",
      queue->runtime().device().index, "'s; give it the model's GPU"));
}

absl::Status AwaitGradients(const Bucket& bucket, DeviceQueue& queue) {
  if (bucket.ready == nullptr) return absl::OkStatus();
  return queue.runtime().StreamWait(queue.stream(), bucket.ready);
}

absl::Status Begun(const WorkPtr& work) {
  return work->Done() ? work->Wait(absl::ZeroDuration()) : absl::OkStatus();
}

std::unique_ptr<Exchange> MakeDeviceExchange(
    const Bucket& bucket, DeviceQueue& queue,
    std::function<absl::Status()> enqueue) {
  return std::make_unique<DeviceExchange>(bucket, queue, std::move(enqueue));
}

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
