#ifndef COXSWAIN_CLIENT_REDUCE_BUCKET_PLAN_H_
#define COXSWAIN_CLIENT_REDUCE_BUCKET_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/reduce/bucket.h"

namespace coxswain {

struct BucketPlanOptions {
  // A bucket is closed once it holds at least this many bytes, so it may be
  // larger by one gradient. The first one is small, so that the exchange
  // begins early.
  int64_t first_bucket_bytes = 1 << 20;
  int64_t bucket_bytes = 25 << 20;
};

// Divides a model's gradients into buckets of one element type and device
// each; the first limit holds once per (type, device). A pure function of its
// arguments: ranks that agree on these agree on the buckets.
//
// Gradients are taken in `ready_order`, the order in which a backward pass
// yields them (a permutation of the registration indices); if it is empty, in
// reversed registration order, which is what a model whose layers were
// registered in the order of use yields. Buckets are numbered in the order in
// which their last gradient comes, so that none waits for a later one.
//
// The buckets have no memory yet: `data.data` is null.
// INVALID_ARGUMENT: limits below 1, a negative extent, not a permutation.
absl::StatusOr<std::vector<Bucket>> PlanBuckets(
    const BucketPlanOptions& options,
    const std::vector<ParameterSpec>& parameters,
    absl::Span<const int> ready_order = {});

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_BUCKET_PLAN_H_
