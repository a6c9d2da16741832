#include "hooks/allreduce.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/device/arithmetic.h"
#include "client/reduce/gradient_statistics.h"
#include "hooks/device/device_exchange.h"
#include "hooks/kernels/cuda/elementwise.h"
#include "hooks/kernels/elementwise.h"
#include "hooks/plain_hook.h"
#include "hooks/weighted_exchange.h"

namespace coxswain {
namespace {

// Makes it this rank's part of the average, with one rounding.
void TakePart(const Span& span, std::optional<double> share, int divisor) {
  if (share.has_value()) return Scale(span, *share);
  if (divisor == 1) return;
  switch (span.dtype) {
    case DType::kFloat32:
      return Divide(static_cast<float*>(span.data), span.count,
                    static_cast<float>(divisor));
    case DType::kFloat64:
      return Divide(static_cast<double*>(span.data), span.count, divisor);
    case DType::kFloat16:
      return DivideFloat16(static_cast<uint16_t*>(span.data), span.count,
                           static_cast<float>(divisor));
    case DType::kBFloat16:
      return DivideBFloat16(static_cast<uint16_t*>(span.data), span.count,
                            static_cast<float>(divisor));
    default:
      return;  // CheckBucket has refused it
  }
}

class AllReduceExchange : public Exchange {
 public:
  AllReduceExchange(const Bucket& bucket, Communicator& communicator)
      : data_(bucket.data),
        share_(UnevenShare(bucket, communicator.size())),
        communicator_(communicator) {
    // With shares, a rank whose share is the mean does as the others do.
    if (communicator.has_mean() && !bucket.share.has_value()) {
      parts_ = bucket.Parts();
    }
  }

  absl::StatusOr<WorkPtr> Advance() override {
    if (std::exchange(started_, true)) return WorkPtr();
    if (parts_.has_value()) return communicator_.AllReduceMean(*parts_);
    TakePart(data_, share_, communicator_.size());
    return communicator_.AllReduce(data_);
  }

 private:
  const Span data_;
  const std::optional<double> share_;
  Communicator& communicator_;
  // What the communicator forms the mean of, if it does.
  std::optional<std::vector<Span>> parts_;
  bool started_ = false;
};

class ReduceScatterExchange : public Exchange {
 public:
  ReduceScatterExchange(const Bucket& bucket, const BucketSlices& slices,
                        Communicator& communicator)
      : data_(bucket.data),
        slices_(slices),
        share_(UnevenShare(bucket, communicator.size())),
        communicator_(communicator) {}

  // The padding's sum is that of whatever is there.
  absl::StatusOr<WorkPtr> Advance() override {
    if (std::exchange(started_, true)) return WorkPtr();
    TakePart(data_, share_, communicator_.size());
    return communicator_.ReduceScatter(
        slices_.Padded(data_),
        slices_.PaddedSlice(data_, communicator_.rank()));
  }

 private:
  const Span data_;
  const BucketSlices slices_;
  const std::optional<double> share_;
  Communicator& communicator_;
  bool started_ = false;
};

absl::Status EnqueuePart(const Span& data, std::optional<double> share,
                         const Communicator& communicator, DeviceQueue& queue) {
  LaunchTarget target = queue.runtime().Target(queue.stream());
  if (share.has_value()) {
    ScaleOnDevice(&target, data.dtype, data.data, data.data, data.count,
                  *share);
  } else if (communicator.size() > 1) {
    EnqueueDivide(&target, data.dtype, data.data, data.count,
                  communicator.size());
  }
  return queue.runtime().StatusOf(target);
}

// With `slices` a reduce-scatter: the padding's sum is that of whatever is
// there.
absl::Status EnqueueSum(const Span& data, std::optional<BucketSlices> slices,
                        std::optional<double> share, Communicator& communicator,
                        DeviceQueue& queue) {
  COXSWAIN_RETURN_IF_ERROR(EnqueuePart(data, share, communicator, queue));
  if (!slices.has_value()) return Begun(communicator.AllReduce(data));
  return Begun(communicator.ReduceScatter(
      slices->Padded(data), slices->PaddedSlice(data, communicator.rank())));
}

absl::StatusOr<std::unique_ptr<Exchange>> PrepareOnDevice(
    const Bucket& bucket, std::optional<BucketSlices> slices,
    Communicator& communicator, SequenceCache* sequences) {
  COXSWAIN_ASSIGN_OR_RETURN(DeviceQueue* const queue,
                            QueueFor("allreduce", bucket, communicator));
  const auto share = UnevenShare(bucket, communicator.size());
  const auto enqueue = [data = bucket.data, slices, share, &communicator,
                        queue] {
    return EnqueueSum(data, slices, share, communicator, *queue);
  };
  // Shares differ from step to step.
  if (share.has_value()) sequences = nullptr;
  const int64_t part = slices.has_value() ? 1 : 0;
  return MakeDeviceExchange(
      bucket, *queue, [enqueue, data = bucket.data, part, queue, sequences] {
        return sequences == nullptr
                   ? enqueue()
                   : sequences->Run(*queue, data, part, enqueue);
      });
}

class AllReduceHook : public PlainHook {
 public:
  using PlainHook::PlainHook;

  bool applies_share() const override { return true; }
  bool takes_parts() const override { return true; }

  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    sequences_.Clear();
    return PlainHook::Configure(parameters, world_size);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    COXSWAIN_RETURN_IF_ERROR(CheckBucketType(spec(), bucket));
    return PrepareAllReduce(bucket, communicator, &sequences_);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> PrepareSlice(
      const Bucket& bucket, const BucketSlices& slices,
      Communicator& communicator) override {
    COXSWAIN_RETURN_IF_ERROR(CheckBucketType(spec(), bucket));
    return PrepareReduceScatter(bucket, slices, communicator, &sequences_);
  }

 private:
  SequenceCache sequences_;
};

}  // namespace

std::unique_ptr<Hook> MakeAllReduceHook(std::string spec) {
  return std::make_unique<AllReduceHook>(std::move(spec));
}

HookRow AllReduceRow() {
  HookRow row;
  row.description.name = "allreduce";
  row.description.help = "the average of the gradients, uncompressed";
  row.description.card = {
      "those of the gradients: 4 N bytes for a bucket of N float32 elements",
      "1 all-reduce",
      "none",
      "one rounding by the division, then the back end's sum in the gradients' "
      "type",
      "networks that are slower than the computation",
  };
  row.on_device = true;
  row.make = [](std::string spec, OptionValues, std::unique_ptr<Hook>) {
    return MakeAllReduceHook(std::move(spec));
  };
  return row;
}

absl::StatusOr<std::unique_ptr<Exchange>> PrepareAllReduce(
    const Bucket& bucket, Communicator& communicator,
    SequenceCache* sequences) {
  if (IsOnDevice(bucket)) {
    return PrepareOnDevice(bucket, std::nullopt, communicator, sequences);
  }
  return std::make_unique<AllReduceExchange>(bucket, communicator);
}

absl::StatusOr<std::unique_ptr<Exchange>> PrepareReduceScatter(
    const Bucket& bucket, const BucketSlices& slices,
    Communicator& communicator, SequenceCache* sequences) {
  if (IsOnDevice(bucket)) {
    return PrepareOnDevice(bucket, slices, communicator, sequences);
  }
  return std::make_unique<ReduceScatterExchange>(bucket, slices, communicator);
}

}  // namespace coxswain
