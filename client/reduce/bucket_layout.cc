#include "client/reduce/bucket_layout.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "base/status_macros.h"

namespace coxswain {

absl::StatusOr<std::unique_ptr<BucketLayout>> BucketLayout::Create(
    const BucketPlanOptions& options,
    const std::vector<ParameterSpec>& parameters,
    absl::Span<const int> ready_order, Communicator& communicator) {
  std::unique_ptr<BucketLayout> layout(new BucketLayout());
  COXSWAIN_ASSIGN_OR_RETURN(layout->buckets_,
                            PlanBuckets(options, parameters, ready_order));
  layout->places_.resize(parameters.size());
  for (Bucket& bucket : layout->buckets_) {
    COXSWAIN_ASSIGN_OR_RETURN(
        std::shared_ptr<BufferOwner> memory,
        communicator.AllocateBuffer(bucket.data.count, bucket.data.dtype));
    bucket.data = memory->span();
    if (bucket.data.count > 0) {
      std::memset(bucket.data.data, 0,
                  static_cast<size_t>(bucket.data.bytes()));
    }
    for (const GradientSlot& slot : bucket.gradients) {
      layout->places_[static_cast<size_t>(slot.parameter)] = {
          bucket.index, bucket.Gradient(slot), memory};
    }
  }
  return layout;
}

void BucketLayout::CopyFrom(const BucketLayout& other,
                            const std::vector<ParameterSpec>& other_parameters,
                            const std::vector<ParameterSpec>& parameters) {
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
    const Span& from = other.place(found->second).view;
    const Span& to = places_[i].view;
    if (to.count == 0) continue;
    std::memcpy(to.data, from.data, static_cast<size_t>(to.bytes()));
  }
}

}  // namespace coxswain
