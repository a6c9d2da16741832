#ifndef COXSWAIN_CLIENT_REDUCE_BUCKET_LAYOUT_H_
#define COXSWAIN_CLIENT_REDUCE_BUCKET_LAYOUT_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/bucket_plan.h"
#include "client/reduce/gradient_memory.h"

namespace coxswain {

// Where a parameter's gradient lies.
struct GradientPlace {
  int bucket = 0;
  Span view;
  // Owns what `view` points to: whoever keeps a view past a change of the
  // layout keeps this, too.
  std::shared_ptr<BufferOwner> memory;
};

// Buckets with their memory and, on a GPU, their events. Immutable but for the
// elements; shared by the reducer and its exchange thread.
class BucketLayout {
 public:
  // The elements are undefined. Errors of PlanBuckets,
  // Communicator::AllocateBuffer and GradientMemory::MakeReady.
  static absl::StatusOr<std::unique_ptr<BucketLayout>> Create(
      const BucketPlanOptions& options,
      const std::vector<ParameterSpec>& parameters,
      absl::Span<const int> ready_order, Communicator& communicator,
      GradientMemory& memory);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  const GradientPlace& place(int parameter) const {
    return places_[static_cast<size_t>(parameter)];
  }

  // Zeros.
  absl::Status Clear(GradientMemory& memory);
  // Takes over the elements of those parameters of another layout that have
  // the same name, shape and type. Each list describes its layout.
  absl::Status CopyFrom(const BucketLayout& other,
                        const std::vector<ParameterSpec>& other_parameters,
                        const std::vector<ParameterSpec>& parameters,
                        GradientMemory& memory);

 private:
  BucketLayout() = default;

  std::vector<Bucket> buckets_;
  std::vector<GradientPlace> places_;          // by parameter
  std::vector<GradientMemory::Ready> events_;  // by bucket
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_BUCKET_LAYOUT_H_
