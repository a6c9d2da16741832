#include "client/reduce/own_slices.h"

#include <cstdint>
#include <cstring>

#include "base/reduce_elements.h"
#include "base/status_macros.h"
#include "client/reduce/bucket_slices.h"

namespace coxswain {

absl::StatusOr<std::unique_ptr<OwnSlices>> OwnSlices::Create(
    const std::vector<Bucket>& buckets, Communicator& communicator) {
  const auto slices_of = [&](const Bucket& bucket) {
    return BucketSlices::Of(bucket.data, communicator.size());
  };
  const auto bytes_of = [&](const Bucket& bucket) {
    return slices_of(bucket).each *
           static_cast<int64_t>(SizeOf(bucket.data.dtype));
  };
  int64_t bytes = 0;
  for (const Bucket& bucket : buckets) bytes += bytes_of(bucket);
  std::unique_ptr<OwnSlices> own(new OwnSlices());
  COXSWAIN_ASSIGN_OR_RETURN(own->memory_,
                            communicator.AllocateBuffer(bytes, DType::kUInt8));
  const Span all = own->memory_->span();
  if (bytes > 0) std::memset(all.data, 0, static_cast<size_t>(bytes));
  int64_t begin = 0;
  for (const Bucket& bucket : buckets) {
    Span slice = all.Slice(begin, bytes_of(bucket));
    slice.dtype = bucket.data.dtype;
    slice.count =
        slices_of(bucket).count(bucket.data.count, communicator.rank());
    own->slices_.push_back(slice);
    begin += bytes_of(bucket);
  }
  return own;
}

void OwnSlices::Put(int bucket, const Span& averages) const {
  const Span& slice = at(bucket);
  if (slice.count == 0) return;
  std::memcpy(slice.data, averages.data, static_cast<size_t>(slice.bytes()));
}

void OwnSlices::Add(int bucket, const Span& averages) const {
  const Span& slice = at(bucket);
  ReduceElements(slice.dtype, ElementOp::kSum, slice.data, slice.data,
                 averages.data, static_cast<size_t>(slice.count));
}

}  // namespace coxswain
