#ifndef COXSWAIN_CLIENT_REDUCE_BUCKET_LAYOUT_H_
#define COXSWAIN_CLIENT_REDUCE_BUCKET_LAYOUT_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/gradient_memory.h"

namespace coxswain {

struct BucketPlanOptions {
  // A bucket is closed once it holds at least this many bytes, so it may be
  // larger by one gradient. The first one is small, so that the exchange begins
  // early.
  int64_t first_bucket_bytes = 1 << 20;
  int64_t bucket_bytes = 25 << 20;
  // Names of parameters whose gradients come after all others, since they are
  // first summed up with those of another stage of a pipeline (tied weights):
  // they have buckets of their own, the last ones, and delay no others.
  std::set<std::string> late_parameters = {};
  // Names of parameters that have buckets of their own, whose layout depends on
  // them alone: neither on the other parameters nor on the order in which
  // gradients come, but that late ones are apart. So their averages have the
  // same bits in groups of ranks whose other parameters have other sizes.
  std::set<std::string> separate_parameters = {};
  // Names of those that other ranks count in the norm of all gradients: see
  // ReducerOptions::counts_in_norm.
  std::set<std::string> uncounted_parameters = {};
};

// Divides a model's gradients into buckets of one element type and device
// each; the first limit holds once per (type, device). A pure function of its
// arguments: ranks that agree on these agree on the buckets.
//
// Gradients are taken in `ready_order`, the order in which a backward pass
// yields them (a permutation of the registration indices); if it is empty, in
// reversed registration order, which is the order of a model whose layers were
// registered in the order of use; late ones in the same order, after all
// others; separate ones always in reversed registration order. Buckets are
// numbered in the order in which their last gradient comes, so that none waits
// for a later one.
//
// The buckets have no memory yet: `data.data` is null. Fails with
// INVALID_ARGUMENT for limits below 1, a negative extent, or an order that is
// not a permutation.
absl::StatusOr<std::vector<Bucket>> PlanBuckets(
    const BucketPlanOptions& options,
    const std::vector<ParameterSpec>& parameters,
    absl::Span<const int> ready_order = {});

// Where a parameter's gradient lies.
struct GradientPlace {
  int bucket = 0;
  int64_t offset = 0;  // elements from the start of the bucket
  Span view;           // without memory, where the bucket has none
  // Owns the memory of `view`: a caller that keeps a view past a change of the
  // layout keeps this, too.
  std::shared_ptr<BufferOwner> memory;
};

// The memory that a layout's buckets have.
enum class BucketMemory {
  kWhole,
  kPadded,    // with space behind each for the padding of its slices
  kReleased,  // none: it comes and goes with the gradients (BucketPool)
};

// Buckets with their memory and, on a GPU, their events. Immutable but for the
// elements; shared by the reducer and its exchange thread.
class BucketLayout {
 public:
  // Allocates the buckets; the elements are zeros. Fails with the errors of
  // PlanBuckets, Communicator::AllocateBuffer and GradientMemory::MakeReady.
  static absl::StatusOr<std::unique_ptr<BucketLayout>> Create(
      const BucketPlanOptions& options,
      const std::vector<ParameterSpec>& parameters,
      absl::Span<const int> ready_order, Communicator& communicator,
      GradientMemory& memory, BucketMemory kind = BucketMemory::kWhole);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  // Returns the bytes of their memory.
  int64_t bytes() const { return bytes_; }
  const GradientPlace& place(int parameter) const {
    return places_[static_cast<size_t>(parameter)];
  }

  // Copies the elements of those parameters of another layout that have the
  // same name, shape and type, where buckets have memory. Each list describes
  // its layout.
  absl::Status CopyFrom(const BucketLayout& other,
                        const std::vector<ParameterSpec>& other_parameters,
                        const std::vector<ParameterSpec>& parameters,
                        GradientMemory& memory);

 private:
  BucketLayout() = default;

  absl::Status Allocate(Bucket& bucket, int64_t elements,
                        Communicator& communicator);

  std::vector<Bucket> buckets_;
  int64_t bytes_ = 0;
  std::vector<GradientPlace> places_;          // by parameter
  std::vector<GradientMemory::Ready> events_;  // by bucket
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_BUCKET_LAYOUT_H_
