// DistributedDataParallel's averages where each rank has those of its own
// slices of the buckets only.

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <vector>

#include "client/reduce/bucket.h"
#include "client/reduce/bucket_slices.h"
#include "client/torch/ddp_internal.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {

using ::torch::Tensor;

std::vector<Tensor> DistributedDataParallel::parameters() const {
  std::vector<Tensor> parameters;
  for (const auto& parameter : parameters_) {
    parameters.push_back(parameter->gradient.parameter());
  }
  return parameters;
}

absl::Status DistributedDataParallel::GatherSlices(
    const std::vector<Span>& wholes) {
  if (status_.ok()) Keep(reducer_->GatherSlices(wholes));
  return status_;
}

std::vector<Tensor> DistributedDataParallel::OwnSlices() const {
  std::vector<Tensor> slices;
  for (const Bucket& bucket : reducer_->buckets()) {
    if (zero() == 0) break;
    const Span own = reducer_->OwnSlice(bucket);
    slices.push_back(TensorOf(own, {own.count}));
  }
  return slices;
}

bool DistributedDataParallel::OwnSliceIsFinite(int parameter) const {
  for (const Bucket& bucket : reducer_->buckets()) {
    const Communicator& slicing = reducer_->slicing();
    const BucketSlices slices = BucketSlices::Of(bucket.data, slicing.size());
    const int rank = slicing.rank();
    const int64_t begin = slices.begin(bucket.data.count, rank);
    const int64_t end = begin + slices.count(bucket.data.count, rank);
    const Span own = reducer_->OwnSlice(bucket);
    for (const GradientSlot& slot : bucket.gradients) {
      const int64_t first = std::max(slot.offset, begin);
      const int64_t last = std::min(slot.offset + slot.count, end);
      if (slot.parameter != parameter || first >= last) continue;
      bool finite = true;
      (void)Guarded("looking for it", [&] {
        finite =
            TensorOf(own.Slice(first - begin, last - first), {last - first})
                .isfinite()
                .all()
                .item<bool>();
      });
      return finite;
    }
  }
  return true;
}

}  // namespace coxswain::torch
