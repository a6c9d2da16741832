#ifndef COXSWAIN_CLIENT_REDUCE_BUCKET_LAYOUT_H_
#define COXSWAIN_CLIENT_REDUCE_BUCKET_LAYOUT_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/bucket_plan.h"

namespace coxswain {

// Where a parameter's gradient lies.
struct GradientPlace {
  int bucket = 0;
  Span view;
  // Owns what `view` points to: whoever keeps a view past a change of the
  // layout keeps this, too.
  std::shared_ptr<BufferOwner> memory;
};

// Buckets with their memory, which is zero at first. Immutable but for the
// elements; shared by the reducer and its exchange thread.
class BucketLayout {
 public:
  // Errors of PlanBuckets and Communicator::AllocateBuffer.
  static absl::StatusOr<std::unique_ptr<BucketLayout>> Create(
      const BucketPlanOptions& options,
      const std::vector<ParameterSpec>& parameters,
      absl::Span<const int> ready_order, Communicator& communicator);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  const GradientPlace& place(int parameter) const {
    return places_[static_cast<size_t>(parameter)];
  }

  // Takes over the elements of those parameters of another layout that have
  // the same name, shape and type. Each list describes its layout.
  void CopyFrom(const BucketLayout& other,
                const std::vector<ParameterSpec>& other_parameters,
                const std::vector<ParameterSpec>& parameters);

 private:
  BucketLayout() = default;

  std::vector<Bucket> buckets_;
  std::vector<GradientPlace> places_;  // by parameter
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_BUCKET_LAYOUT_H_
