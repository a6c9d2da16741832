#include "hooks/staged_hook.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "base/status_macros.h"
#include "hooks/device/device_exchange.h"
#include "hooks/device/device_scratch.h"
#include "hooks/wrapper_hook.h"

namespace coxswain {
namespace {

using HostBlock = DeviceScratch::HostBlock;

class StagedExchange : public Exchange {
 public:
  // With `slices`, `memory` has room for their padding.
  StagedExchange(Hook& hook, const Bucket& bucket,
                 std::optional<BucketSlices> slices, Communicator& communicator,
                 DeviceQueue& queue, DeviceScratch& scratch,
                 std::shared_ptr<HostBlock> memory)
      : hook_(hook),
        bucket_(bucket),
        slices_(slices),
        communicator_(communicator),
        queue_(queue),
        scratch_(scratch),
        memory_(std::move(memory)),
        host_(bucket) {
    host_.data.data = memory_->data;
    host_.data.device = Device();
    host_.ready = nullptr;
  }

  absl::StatusOr<WorkPtr> Advance() override {
    switch (phase_) {
      case Phase::kBegin:
        phase_ = Phase::kPrepare;
        COXSWAIN_RETURN_IF_ERROR(AwaitGradients(bucket_, queue_));
        return Copy(host_.data, bucket_.data);
      case Phase::kPrepare:
        phase_ = Phase::kExchange;
        COXSWAIN_RETURN_IF_ERROR(PrepareInner());
        return AdvanceInner();
      case Phase::kExchange:
        return AdvanceInner();
      case Phase::kEnd:
        break;
    }
    memory_->copying = false;
    return WorkPtr();
  }

 private:
  enum class Phase { kBegin, kPrepare, kExchange, kEnd };

  absl::Status PrepareInner() {
    memory_->copying = false;
    auto inner = slices_.has_value()
                     ? hook_.PrepareSlice(host_, *slices_, communicator_)
                     : hook_.Prepare(host_, communicator_);
    COXSWAIN_ASSIGN_OR_RETURN(inner_, std::move(inner));
    return absl::OkStatus();
  }

  absl::StatusOr<WorkPtr> AdvanceInner() {
    COXSWAIN_ASSIGN_OR_RETURN(WorkPtr work, inner_->Advance());
    if (work != nullptr) return work;
    phase_ = Phase::kEnd;
    return Copy(Averages(bucket_), Averages(host_));
  }

  Span Averages(const Bucket& bucket) const {
    return slices_.has_value()
               ? slices_->Slice(bucket.data, communicator_.rank())
               : bucket.data;
  }

  absl::StatusOr<WorkPtr> Copy(const Span& to, const Span& from) {
    memory_->copying = true;
    absl::Status status = queue_.runtime().Copy(to.data, from.data,
                                                from.bytes(), queue_.stream());
    // After an error, too: the copy may be on the stream.
    status.Update(scratch_.Seal(queue_));
    COXSWAIN_RETURN_IF_ERROR(status);
    return queue_.Mark();
  }

  Hook& hook_;
  const Bucket bucket_;
  const std::optional<BucketSlices> slices_;
  Communicator& communicator_;
  DeviceQueue& queue_;
  DeviceScratch& scratch_;
  const std::shared_ptr<HostBlock> memory_;
  Bucket host_;  // the same in the host's memory
  Phase phase_ = Phase::kBegin;
  std::unique_ptr<Exchange> inner_;  // goes before what it uses
};

class StagedHook : public WrapperHook {
 public:
  explicit StagedHook(std::string spec, std::unique_ptr<Hook> inner)
      : WrapperHook(std::move(spec), std::move(inner)) {}

  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    scratch_.Clear();
    return WrapperHook::Configure(parameters, world_size);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    if (!IsOnDevice(bucket)) return inner().Prepare(bucket, communicator);
    return PrepareStaged(bucket, std::nullopt, communicator,
                         bucket.data.bytes());
  }

  absl::StatusOr<std::unique_ptr<Exchange>> PrepareSlice(
      const Bucket& bucket, const BucketSlices& slices,
      Communicator& communicator) override {
    if (!IsOnDevice(bucket)) {
      return inner().PrepareSlice(bucket, slices, communicator);
    }
    return PrepareStaged(bucket, slices, communicator,
                         slices.Padded(bucket.data).bytes());
  }

 private:
  absl::StatusOr<std::unique_ptr<Exchange>> PrepareStaged(
      const Bucket& bucket, std::optional<BucketSlices> slices,
      Communicator& communicator, int64_t bytes) {
    COXSWAIN_ASSIGN_OR_RETURN(DeviceQueue* const queue,
                              QueueFor(spec(), bucket, communicator));
    COXSWAIN_ASSIGN_OR_RETURN(std::shared_ptr<HostBlock> memory,
                              scratch_.TakeHost(*queue, bytes));
    if (!std::exchange(said_, true) && communicator.rank() == 0) Say(bucket);
    return std::make_unique<StagedExchange>(inner(), bucket, slices,
                                            communicator, *queue, scratch_,
                                            std::move(memory));
  }

  void Say(const Bucket& bucket) const {
    LogInfo("hook_staged",
            {{"hook", spec()},
             {"device", bucket.data.device.index},
             {"effect",
              "it has no kernels for GPUs: gradients are exchanged by way of "
              "the host's memory"}});
  }

  DeviceScratch scratch_;
  bool said_ = false;
};

}  // namespace

std::unique_ptr<Hook> MakeStagedHook(std::unique_ptr<Hook> inner) {
  std::string spec = inner->spec();
  return std::make_unique<StagedHook>(std::move(spec), std::move(inner));
}

}  // namespace coxswain
