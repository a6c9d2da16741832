#include "client/reduce/bucket_layout.h"

#include <map>
#include <string>
#include <utility>

#include "base/status_macros.h"

namespace coxswain {

absl::StatusOr<std::unique_ptr<BucketLayout>> BucketLayout::Create(
    const BucketPlanOptions& options,
    const std::vector<ParameterSpec>& parameters,
    absl::Span<const int> ready_order, Communicator& communicator,
    GradientMemory& memory) {
  std::unique_ptr<BucketLayout> layout(new BucketLayout());
  COXSWAIN_ASSIGN_OR_RETURN(layout->buckets_,
                            PlanBuckets(options, parameters, ready_order));
  layout->places_.resize(parameters.size());
  for (Bucket& bucket : layout->buckets_) {
    COXSWAIN_ASSIGN_OR_RETURN(
        std::shared_ptr<BufferOwner> owner,
        communicator.AllocateBuffer(bucket.data.count, bucket.data.dtype));
    COXSWAIN_ASSIGN_OR_RETURN(GradientMemory::Ready ready, memory.MakeReady());
    bucket.data = owner->span();
    bucket.ready = ready.get();
    layout->events_.push_back(std::move(ready));
    for (const GradientSlot& slot : bucket.gradients) {
      layout->places_[static_cast<size_t>(slot.parameter)] = {
          bucket.index, bucket.Gradient(slot), owner};
    }
  }
  return layout;
}

absl::Status BucketLayout::Clear(GradientMemory& memory) {
  for (const Bucket& bucket : buckets_) {
    COXSWAIN_RETURN_IF_ERROR(memory.Clear(bucket.data));
  }
  return absl::OkStatus();
}

absl::Status BucketLayout::CopyFrom(
    const BucketLayout& other,
    const std::vector<ParameterSpec>& other_parameters,
    const std::vector<ParameterSpec>& parameters, GradientMemory& memory) {
  std::map<std::string, int> numbers;
  for (size_t i = 0; i < other_parameters.size(); ++i) {
    numbers[other_parameters[i].name] = static_cast<int>(i);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto found = numbers.find(parameters[i].name);
    if (found == numbers.end()) continue;
    const ParameterSpec& old =
        other_parameters[static_cast<size_t>(found->second)];
    if (old.shape != parameters[i].shape || old.dtype != parameters[i].dtype) {
      continue;
    }
    COXSWAIN_RETURN_IF_ERROR(
        memory.Copy(places_[i].view, other.place(found->second).view));
  }
  return absl::OkStatus();
}

}  // namespace coxswain
