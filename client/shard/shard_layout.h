#ifndef COXSWAIN_CLIENT_SHARD_SHARD_LAYOUT_H_
#define COXSWAIN_CLIENT_SHARD_SHARD_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/reduce/bucket.h"
#include "client/reduce/bucket_slices.h"
#include "client/shard/piece.h"

namespace coxswain {

// The elements of a bucket that one rank keeps.
struct BucketSlice {
  int bucket = 0;
  int64_t begin = 0;  // elements from the start of the bucket
  int64_t count = 0;  // without padding; 0 where a bucket has too few
};

// What a slice has of one parameter: elements [parameter_begin, +count) of the
// parameter, row-major, are elements [slice_begin, +count) of the slice.
struct SlicePart {
  int parameter = 0;  // registration index
  int64_t parameter_begin = 0;
  int64_t slice_begin = 0;
  int64_t count = 0;
};

// Where a parameter that a rank has is in the whole model: with tensor
// parallelism it is a box of a tensor there.
struct WholeTensor {
  std::vector<int64_t> shape;
  Box box;  // of the parameter's own shape
};

// Which rank keeps which elements of the buckets: rank r the r-th slice of
// each (BucketSlices). A pure function of buckets and ranks. Immutable.
class ShardLayout {
 public:
  // Fails with INVALID_ARGUMENT for less than one rank.
  static absl::StatusOr<ShardLayout> Create(std::vector<Bucket> buckets,
                                            int ranks);

  int ranks() const { return ranks_; }
  int buckets() const { return static_cast<int>(buckets_.size()); }
  const BucketSlices& slices(int bucket) const {
    return slices_[static_cast<size_t>(bucket)];
  }
  BucketSlice slice(int bucket, int rank) const;
  // Returns what a slice is made of, in order; parameters without elements have
  // no part.
  std::vector<SlicePart> parts(int bucket, int rank) const;
  // Returns how many elements a rank keeps, of all buckets.
  int64_t count(int rank) const;

  // Returns the pieces of a kind that a rank keeps, one for each part of its
  // slices, in that order. `whole` has an entry for each parameter; where it is
  // empty, they are all whole. Fails with INVALID_ARGUMENT if a box is not of
  // its parameter's shape or in its tensor.
  absl::StatusOr<std::vector<TensorPiece>> Pieces(
      int rank, const std::string& kind,
      const std::vector<ParameterSpec>& parameters,
      const std::vector<WholeTensor>& whole = {}) const;

 private:
  ShardLayout() = default;

  std::vector<Bucket> buckets_;
  std::vector<BucketSlices> slices_;
  int ranks_ = 1;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SHARD_SHARD_LAYOUT_H_
