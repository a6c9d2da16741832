#include "hooks/weighted_exchange.h"

#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "client/comm/device_queue.h"
#include "client/device/arithmetic.h"
#include "client/reduce/gradient_statistics.h"
#include "hooks/device/device_exchange.h"
#include "hooks/kernels/cuda/elementwise.h"
#include "hooks/narrow.h"
#include "hooks/narrow_communicator.h"

namespace coxswain {
namespace {

absl::Status ScaleInOrder(DeviceQueue& queue, const Span& span, double factor) {
  LaunchTarget target = queue.runtime().Target(queue.stream());
  ScaleOnDevice(&target, span.dtype, span.data, span.data, span.count, factor);
  return queue.runtime().StatusOf(target);
}

// In place; without the share.
absl::StatusOr<Bucket> Weighted(const Bucket& bucket, double factor,
                                DeviceQueue* queue) {
  Bucket weighted = bucket;
  weighted.share.reset();
  if (factor == 1) return weighted;
  if (queue == nullptr) {
    Scale(bucket.data, factor);
    return weighted;
  }
  COXSWAIN_RETURN_IF_ERROR(AwaitGradients(bucket, *queue));
  COXSWAIN_RETURN_IF_ERROR(ScaleInOrder(*queue, bucket.data, factor));
  return weighted;
}

// An exchange of a 16-bit bucket by way of one of float32.
class WidenedExchange : public Exchange {
 public:
  // `queue` is null in the CPU's memory.
  WidenedExchange(const Bucket& bucket, Communicator& communicator,
                  DeviceQueue* queue, ScratchPool& scratch,
                  DeviceScratch& device_scratch)
      : bucket_(bucket),
        queue_(queue),
        device_scratch_(device_scratch),
        narrow_(communicator, bucket.data.dtype, scratch, &device_scratch),
        wide_(bucket) {
    wide_.share.reset();
    wide_.data.dtype = DType::kFloat32;
    wide_.ready = nullptr;  // what reads it comes later on the same stream
  }

  absl::Status Prepare(const WeightedExchanges::Prepare& prepare, double factor,
                       ScratchPool& scratch) {
    if (queue_ != nullptr) {
      COXSWAIN_ASSIGN_OR_RETURN(
          memory_, device_scratch_.Take(*queue_, wide_.data.bytes()));
      wide_.data.data = memory_.get();
      absl::Status status = EnqueueWidened(factor);
      status.Update(device_scratch_.Seal(*queue_));
      COXSWAIN_RETURN_IF_ERROR(status);
    } else {
      memory_ = scratch.Take<float>(static_cast<size_t>(bucket_.data.count));
      wide_.data.data = memory_.get();
      WidenSpan(Narrow(), bucket_.data.dtype, wide_.data);
      if (factor != 1) Scale(wide_.data, factor);
    }
    COXSWAIN_ASSIGN_OR_RETURN(inner_, prepare(wide_, narrow_));
    return absl::OkStatus();
  }

  absl::StatusOr<WorkPtr> Advance() override {
    if (inner_ == nullptr) return WorkPtr();
    COXSWAIN_ASSIGN_OR_RETURN(WorkPtr work, inner_->Advance());
    if (work != nullptr) return work;
    if (queue_ == nullptr) {
      NarrowSpan(wide_.data, bucket_.data.dtype, Narrow());
      return WorkPtr();
    }
    inner_ = nullptr;
    absl::Status status = EnqueueNarrowed();
    status.Update(device_scratch_.Seal(*queue_));
    COXSWAIN_RETURN_IF_ERROR(status);
    return queue_->Mark();
  }

 private:
  uint16_t* Narrow() const { return static_cast<uint16_t*>(bucket_.data.data); }

  absl::Status EnqueueWidened(double factor) {
    COXSWAIN_RETURN_IF_ERROR(AwaitGradients(bucket_, *queue_));
    LaunchTarget target = queue_->runtime().Target(queue_->stream());
    EnqueueWiden(&target, bucket_.data.dtype, Narrow(), wide_.data.dtype,
                 wide_.data.data, wide_.data.count);
    COXSWAIN_RETURN_IF_ERROR(queue_->runtime().StatusOf(target));
    return factor == 1 ? absl::OkStatus()
                       : ScaleInOrder(*queue_, wide_.data, factor);
  }

  absl::Status EnqueueNarrowed() {
    LaunchTarget target = queue_->runtime().Target(queue_->stream());
    EnqueueNarrow(&target, wide_.data.dtype, wide_.data.data,
                  bucket_.data.dtype, Narrow(), bucket_.data.count);
    return queue_->runtime().StatusOf(target);
  }

  const Bucket bucket_;
  DeviceQueue* const queue_;
  DeviceScratch& device_scratch_;
  NarrowCommunicator narrow_;
  std::shared_ptr<void> memory_;
  Bucket wide_;
  std::unique_ptr<Exchange> inner_;  // goes before what it uses
};

}  // namespace

absl::StatusOr<std::unique_ptr<Exchange>> WeightedExchanges::Make(
    absl::string_view hook, const Bucket& bucket, Communicator& communicator,
    const Prepare& prepare) {
  if (!bucket.share.has_value()) return prepare(bucket, communicator);
  const int ranks = communicator.size();
  const std::optional<double> share = UnevenShare(bucket, ranks);
  const double factor = share.has_value() ? *share * ranks : 1;
  DeviceQueue* queue = nullptr;
  if (IsOnDevice(bucket)) {
    COXSWAIN_ASSIGN_OR_RETURN(queue, QueueFor(hook, bucket, communicator));
  }
  if (IsWide(bucket.data.dtype)) {
    COXSWAIN_ASSIGN_OR_RETURN(const Bucket weighted,
                              Weighted(bucket, factor, queue));
    return prepare(weighted, communicator);
  }
  auto exchange = std::make_unique<WidenedExchange>(bucket, communicator, queue,
                                                    scratch_, device_scratch_);
  COXSWAIN_RETURN_IF_ERROR(exchange->Prepare(prepare, factor, scratch_));
  return exchange;
}

}  // namespace coxswain
