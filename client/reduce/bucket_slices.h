#ifndef COXSWAIN_CLIENT_REDUCE_BUCKET_SLICES_H_
#define COXSWAIN_CLIENT_REDUCE_BUCKET_SLICES_H_

#include <algorithm>
#include <cstdint>

#include "client/device/tensor.h"

namespace coxswain {

// How the elements of a bucket are divided among ranks of which each keeps the
// averages of its own slice only: slices of equal size, in the order of ranks,
// of whole cache lines, so that no two ranks write to one. The last ones reach
// beyond the bucket's end, or lie there altogether: what is beyond is padding,
// for which the bucket's memory has space.
struct BucketSlices {
  int64_t each = 0;  // elements of a slice, with padding
  int ranks = 1;

  // Returns the slices of a bucket with these elements.
  static BucketSlices Of(const Span& data, int ranks) {
    constexpr int64_t kCacheLine = 64;
    const int64_t line = kCacheLine / static_cast<int64_t>(SizeOf(data.dtype));
    const int64_t row = line * ranks;
    return {(data.count + row - 1) / row * line, ranks};
  }

  // Returns the elements of all slices, with padding.
  int64_t padded() const { return each * ranks; }
  // Return the first element of a slice, and how many it has, of a bucket of
  // `elements`: without padding.
  int64_t begin(int64_t elements, int rank) const {
    return std::min(elements, each * rank);
  }
  int64_t count(int64_t elements, int rank) const {
    return std::min(elements, each * (rank + 1)) - begin(elements, rank);
  }

  // Return a rank's slice of a bucket without padding, and with it; and all of
  // them with padding.
  Span Slice(const Span& data, int rank) const {
    return data.Slice(begin(data.count, rank), count(data.count, rank));
  }
  Span PaddedSlice(const Span& data, int rank) const {
    return Padded(data).Slice(each * rank, each);
  }
  Span Padded(const Span& data) const {
    Span all = data;
    all.count = padded();
    return all;
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_BUCKET_SLICES_H_
