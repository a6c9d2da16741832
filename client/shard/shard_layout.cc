#include "client/shard/shard_layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

absl::Status CheckBox(const ParameterSpec& parameter,
                      const WholeTensor& whole) {
  const Box& box = whole.box;
  bool same = box.begin.size() == parameter.shape.size() &&
              box.end.size() == parameter.shape.size();
  for (size_t d = 0; same && d < parameter.shape.size(); ++d) {
    same = box.end[d] - box.begin[d] == parameter.shape[d];
  }
  if (same) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the box of parameter \"", parameter.name,
                   "\" in the whole model is not of the parameter's shape"));
}

}  // namespace

absl::StatusOr<ShardLayout> ShardLayout::Create(std::vector<Bucket> buckets,
                                                int ranks) {
  if (ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("buckets are divided among at least 1 rank, got ", ranks));
  }
  ShardLayout layout;
  layout.ranks_ = ranks;
  for (const Bucket& bucket : buckets) {
    layout.slices_.push_back(BucketSlices::Of(bucket.data, ranks));
  }
  layout.buckets_ = std::move(buckets);
  return layout;
}

BucketSlice ShardLayout::slice(int bucket, int rank) const {
  const Span& data = buckets_[static_cast<size_t>(bucket)].data;
  const BucketSlices& slices = this->slices(bucket);
  return {bucket, slices.begin(data.count, rank),
          slices.count(data.count, rank)};
}

std::vector<SlicePart> ShardLayout::parts(int bucket, int rank) const {
  const BucketSlice own = slice(bucket, rank);
  const int64_t end = own.begin + own.count;
  const auto& slots = buckets_[static_cast<size_t>(bucket)].gradients;
  // The first gradient that does not end before the slice.
  auto slot = std::partition_point(slots.begin(), slots.end(),
                                   [&](const GradientSlot& one) {
                                     return one.offset + one.count <= own.begin;
                                   });
  std::vector<SlicePart> parts;
  for (; slot != slots.end() && slot->offset < end; ++slot) {
    const int64_t first = std::max(slot->offset, own.begin);
    const int64_t last = std::min(slot->offset + slot->count, end);
    if (first >= last) continue;
    parts.push_back({slot->parameter, first - slot->offset, first - own.begin,
                     last - first});
  }
  return parts;
}

int64_t ShardLayout::count(int rank) const {
  int64_t count = 0;
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    count += slice(bucket, rank).count;
  }
  return count;
}

absl::StatusOr<std::vector<TensorPiece>> ShardLayout::Pieces(
    int rank, const std::string& kind,
    const std::vector<ParameterSpec>& parameters,
    const std::vector<WholeTensor>& whole) const {
  std::vector<TensorPiece> pieces;
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    for (const SlicePart& part : parts(bucket, rank)) {
      const auto number = static_cast<size_t>(part.parameter);
      if (number >= parameters.size() ||
          (!whole.empty() && number >= whole.size())) {
        return absl::InvalidArgumentError(
            absl::StrCat("bucket ", bucket, " has parameter ", number, ", but ",
                         parameters.size(), " parameters and ", whole.size(),
                         " boxes are given"));
      }
      const ParameterSpec& parameter = parameters[number];
      TensorPiece piece = TensorPiece::Whole(parameter.name, kind,
                                             parameter.dtype, parameter.shape);
      if (!whole.empty()) {
        COXSWAIN_RETURN_IF_ERROR(CheckBox(parameter, whole[number]));
        piece.shape = whole[number].shape;
        piece.box = whole[number].box;
      }
      piece.begin = part.parameter_begin;
      piece.end = part.parameter_begin + part.count;
      COXSWAIN_RETURN_IF_ERROR(CheckPiece(piece));
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

}  // namespace coxswain
