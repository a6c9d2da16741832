#include "hooks/low_rank/device_powersgd.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "client/comm/device_queue.h"
#include "hooks/device/device_exchange.h"
#include "hooks/narrow.h"
#include "hooks/narrow_communicator.h"
#include "hooks/non_finite.h"

namespace coxswain {
namespace {

template <typename T>
class DevicePowerSgdExchange : public Exchange {
 public:
  DevicePowerSgdExchange(const Bucket& bucket, DeviceBucket<T>& memory,
                         Communicator& communicator, DeviceScratch& scratch,
                         const LowRankStep& step)
      : bucket_(bucket),
        memory_(memory),
        step_(step),
        communicator_(&communicator) {
    step.report.elements += bucket.data.count;
    step.report.sent += memory.first_count() + memory.second_count();
    if (!IsWide(bucket.data.dtype)) {
      narrow_.emplace(communicator, bucket.data.dtype, step.scratch, &scratch);
      communicator_ = &*narrow_;
    }
    queue_ = communicator_->device_queue();
  }

  absl::StatusOr<WorkPtr> Advance() override {
    switch (phase_++) {
      case 0:
        COXSWAIN_RETURN_IF_ERROR(
            memory_.Enqueue(bucket_, *communicator_, *queue_, step_.number));
        return queue_->Mark();
      case 1:
        return Judge();
      default:
        COXSWAIN_RETURN_IF_ERROR(Finish());
        return WorkPtr();
    }
  }

 private:
  // All ranks have the same flags.
  absl::StatusOr<WorkPtr> Judge() {
    poisoned_ = memory_.first_poisoned() || memory_.second_poisoned();
    if (!poisoned_) {
      memory_.Stage();
      return Work::Ended(absl::OkStatus());
    }
    step_.report.poisoned = true;
    if (memory_.first_poisoned()) COXSWAIN_RETURN_IF_ERROR(Search());
    COXSWAIN_RETURN_IF_ERROR(memory_.FillWithNan(bucket_, *queue_));
    // Later buckets' collectives may be in front of it on the stream.
    return search_.has_value() ? search_->Start(*communicator_)
                               : queue_->Mark();
  }

  // The gradients are as they were; looks at a copy of them.
  absl::Status Search() {
    COXSWAIN_ASSIGN_OR_RETURN(const PinnedBuffer copy,
                              memory_.Gradients(bucket_));
    Bucket on_host = bucket_;
    on_host.data.data = copy.data();
    on_host.data.device = Device();
    on_host.ready = nullptr;
    search_.emplace(on_host, step_.parameters);
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (!poisoned_) return absl::OkStatus();
    std::vector<NonFiniteGradient> found;
    if (search_.has_value()) found = search_->Found();
    std::vector<NonFiniteGradient>& all = step_.report.non_finite;
    all.insert(all.end(), found.begin(), found.end());
    return found.empty() ? memory_.DropOverflows() : absl::OkStatus();
  }

  const Bucket bucket_;
  DeviceBucket<T>& memory_;
  const LowRankStep step_;
  Communicator* communicator_;  // what was given, or narrow_
  DeviceQueue* queue_;          // its own
  std::optional<NarrowCommunicator> narrow_;
  std::optional<NonFiniteSearch> search_;
  int phase_ = 0;
  bool poisoned_ = false;
};

bool Share(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(), [&b](int number) {
    return std::find(b.begin(), b.end(), number) != b.end();
  });
}

}  // namespace

template <typename T>
absl::StatusOr<std::unique_ptr<Exchange>> DevicePowerSgd::Prepare(
    const Bucket& bucket, std::vector<LowRankTensor<T>*> tensors,
    Communicator& communicator, const LowRankStep& step) {
  COXSWAIN_ASSIGN_OR_RETURN(DeviceQueue* const queue,
                            QueueFor("powersgd", bucket, communicator));
  COXSWAIN_ASSIGN_OR_RETURN(
      DeviceBucket<T>* const memory,
      BucketFor(bucket, queue->runtime(), std::move(tensors), step.config));
  return std::make_unique<DevicePowerSgdExchange<T>>(
      bucket, *memory, communicator, scratch_, step);
}

template <typename T>
absl::StatusOr<DeviceBucket<T>*> DevicePowerSgd::BucketFor(
    const Bucket& bucket, DeviceRuntime& runtime,
    std::vector<LowRankTensor<T>*> tensors, const LowRankConfig& config) {
  DeviceBucketKey key{&runtime, bucket.data.dtype, {}};
  for (const GradientSlot& slot : bucket.gradients) {
    key.parameters.push_back(slot.parameter);
  }
  for (const auto& known : buckets_) {
    // The type is T, which follows from the key.
    if (known->key() == key) return static_cast<DeviceBucket<T>*>(known.get());
  }
  COXSWAIN_RETURN_IF_ERROR(Dissolve(key));
  COXSWAIN_ASSIGN_OR_RETURN(
      std::unique_ptr<DeviceBucket<T>> made,
      DeviceBucket<T>::Make(std::move(key), std::move(tensors), config));
  DeviceBucket<T>* const bucket_memory = made.get();
  buckets_.push_back(std::move(made));
  return bucket_memory;
}

absl::Status DevicePowerSgd::Dissolve(const DeviceBucketKey& key) {
  for (auto it = buckets_.begin(); it != buckets_.end();) {
    if (!Share((*it)->key().parameters, key.parameters)) {
      ++it;
      continue;
    }
    COXSWAIN_RETURN_IF_ERROR((*it)->Fetch());
    it = buckets_.erase(it);
  }
  return absl::OkStatus();
}

absl::Status DevicePowerSgd::Fetch() const {
  for (const auto& bucket : buckets_) {
    COXSWAIN_RETURN_IF_ERROR(bucket->Fetch());
  }
  return absl::OkStatus();
}

void DevicePowerSgd::Forget() {
  buckets_.clear();
  scratch_.Clear();
}

void DevicePowerSgd::EndStep(bool commit) {
  for (const auto& bucket : buckets_) bucket->EndStep(commit);
}

template absl::StatusOr<std::unique_ptr<Exchange>>
DevicePowerSgd::Prepare<float>(const Bucket&,
                               std::vector<LowRankTensor<float>*>,
                               Communicator&, const LowRankStep&);
template absl::StatusOr<std::unique_ptr<Exchange>>
DevicePowerSgd::Prepare<double>(const Bucket&,
                                std::vector<LowRankTensor<double>*>,
                                Communicator&, const LowRankStep&);

}  // namespace coxswain
