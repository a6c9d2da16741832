#include "client/reduce/own_slices.h"

#include <cstdint>

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

}  // namespace coxswain
