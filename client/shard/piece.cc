#include "client/shard/piece.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

absl::Status NoPiece(const TensorPiece& piece, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(piece.kind, " of ", piece.parameter, ": ", why));
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// The overlap of two boxes of one tensor, as rows that are in one run in both.
// Dimensions from `inner` on, which both boxes have alike, belong to the rows.
class Overlap {
 public:
  Overlap(const Box& a, const Box& b) : a_(a), b_(b) {
    size_t dimensions = a.begin.size();
    while (dimensions > 0 &&
           a.begin[dimensions - 1] == b.begin[dimensions - 1] &&
           a.end[dimensions - 1] == b.end[dimensions - 1]) {
      --dimensions;
      row_ *= a.end[dimensions] - a.begin[dimensions];
    }
    empty_ = row_ == 0;
    for (size_t d = 0; d < dimensions; ++d) {
      begin_.push_back(std::max(a.begin[d], b.begin[d]));
      end_.push_back(std::min(a.end[d], b.end[d]));
      if (begin_[d] >= end_[d]) empty_ = true;
    }
    // The last of the others is the first of a row.
    inner_ = row_;
    if (dimensions > 0) row_ *= end_[dimensions - 1] - begin_[dimensions - 1];
    index_ = begin_;
  }

  bool empty() const { return empty_; }
  int64_t row() const { return row_; }

  // Returns where the row at hand begins within a box.
  int64_t OffsetIn(const Box& box) const {
    int64_t offset = 0;
    for (size_t d = 0; d < index_.size(); ++d) {
      offset = offset * (box.end[d] - box.begin[d]) + index_[d] - box.begin[d];
    }
    return offset * inner_;
  }
  int64_t OffsetInA() const { return OffsetIn(a_); }
  int64_t OffsetInB() const { return OffsetIn(b_); }

  // Goes on to the next row; returns false after the last.
  bool Next() {
    for (size_t d = index_.size(); d-- > 0;) {
      if (d + 1 == index_.size()) continue;  // within a row
      if (++index_[d] < end_[d]) return true;
      index_[d] = begin_[d];
    }
    return false;
  }

 private:
  const Box& a_;
  const Box& b_;
  bool empty_ = false;
  int64_t row_ = 1;
  int64_t inner_ = 1;
  std::vector<int64_t> begin_, end_, index_;  // of the outer dimensions
};

}  // namespace

Box Box::Whole(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

int64_t Box::count() const {
  int64_t product = 1;
  for (size_t d = 0; d < begin.size(); ++d) product *= end[d] - begin[d];
  return product;
}

TensorPiece TensorPiece::Whole(std::string parameter, std::string kind,
                               ElementType dtype, std::vector<int64_t> shape) {
  Box box = Box::Whole(shape);
  return Of(std::move(parameter), std::move(kind), dtype,
            {std::move(shape), std::move(box)});
}

TensorPiece TensorPiece::Of(std::string parameter, std::string kind,
                            ElementType dtype, const ParameterBox& box) {
  TensorPiece piece;
  piece.parameter = std::move(parameter);
  piece.kind = std::move(kind);
  piece.dtype = dtype;
  piece.shape = box.shape;
  piece.box = box.box;
  piece.end = box.box.count();
  return piece;
}

std::string Describe(const TensorPiece& piece) {
  std::vector<std::string> ranges;
  for (size_t d = 0; d < piece.box.begin.size(); ++d) {
    ranges.push_back(absl::StrCat(piece.box.begin[d], ":", piece.box.end[d]));
  }
  return absl::StrCat(piece.kind, " of ", piece.parameter, ", elements [",
                      piece.begin, ", ", piece.end, ") of the box [",
                      absl::StrJoin(ranges, ", "), "]");
}

absl::Status CheckPiece(const TensorPiece& piece) {
  const size_t dimensions = piece.shape.size();
  if (dimensions > kMaxPieceDimensions) {
    return NoPiece(piece,
                   absl::StrCat("it has ", dimensions, " dimensions, at most ",
                                kMaxPieceDimensions, " are possible"));
  }
  if (piece.box.begin.size() != dimensions ||
      piece.box.end.size() != dimensions) {
    return NoPiece(piece,
                   absl::StrCat("a box of ", piece.box.begin.size(), " and ",
                                piece.box.end.size(), " bounds in a tensor of ",
                                dimensions, " dimensions"));
  }
  int64_t bytes = static_cast<int64_t>(SizeOf(piece.dtype));
  for (size_t d = 0; d < dimensions; ++d) {
    const int64_t begin = piece.box.begin[d];
    const int64_t end = piece.box.end[d];
    if (begin < 0 || begin > end || end > piece.shape[d]) {
      return NoPiece(
          piece,
          absl::StrCat("the box has [", begin, ", ", end, ") in dimension ", d,
                       " of a tensor of shape ", ShapeText(piece.shape)));
    }
    // Of an extent of 0 too: what is left of the product must not overflow.
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(piece.shape[d], 1),
                               &bytes)) {
      return NoPiece(piece,
                     absl::StrCat("a tensor of shape ", ShapeText(piece.shape),
                                  " has more bytes than there can be"));
    }
  }
  const int64_t count = piece.box.count();
  if (piece.begin >= 0 && piece.begin <= piece.end && piece.end <= count) {
    return absl::OkStatus();
  }
  return NoPiece(piece, absl::StrCat("elements [", piece.begin, ", ", piece.end,
                                     ") of a box of ", count));
}

absl::Status CheckMemory(const PieceMemory& memory) {
  COXSWAIN_RETURN_IF_ERROR(CheckPiece(memory.piece));
  if (memory.data != nullptr || memory.piece.count() == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Describe(memory.piece), " has no memory"));
}

std::vector<PieceRun> Intersect(const TensorPiece& have,
                                const TensorPiece& want) {
  std::vector<PieceRun> runs;
  if (have.count() == 0 || want.count() == 0) return runs;
  Overlap overlap(have.box, want.box);
  if (overlap.empty()) return runs;
  do {
    // Within the boxes; both rise from row to row.
    const int64_t in_have = overlap.OffsetInA();
    const int64_t in_want = overlap.OffsetInB();
    if (in_have >= have.end || in_want >= want.end) break;
    const int64_t first =
        std::max<int64_t>({0, have.begin - in_have, want.begin - in_want});
    const int64_t last = std::min<int64_t>(
        {overlap.row(), have.end - in_have, want.end - in_want});
    if (first >= last) continue;
    const PieceRun run = {in_have + first - have.begin,
                          in_want + first - want.begin, last - first};
    if (!runs.empty() && runs.back().from + runs.back().count == run.from &&
        runs.back().to + runs.back().count == run.to) {
      runs.back().count += run.count;
    } else {
      runs.push_back(run);
    }
  } while (overlap.Next());
  return runs;
}

EvenRange EvenRange::Of(int64_t count, int64_t parts, int64_t index) {
  const int64_t each = count / parts;
  const int64_t more = count % parts;
  const int64_t begin = index * each + std::min(index, more);
  return {begin, begin + each + (index < more ? 1 : 0)};
}

absl::StatusOr<Box> CutBox(const std::vector<int64_t>& shape, int dimension,
                           int64_t parts, int64_t index) {
  if (dimension < 0 || static_cast<size_t>(dimension) >= shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor of shape ", ShapeText(shape),
                     " cannot be cut along dimension ", dimension));
  }
  if (parts < 1 || index < 0 || index >= parts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "part ", index, " of ", parts, " of a tensor: give one of at least 1"));
  }
  Box box = Box::Whole(shape);
  const auto d = static_cast<size_t>(dimension);
  const EvenRange range = EvenRange::Of(shape[d], parts, index);
  box.begin[d] = range.begin;
  box.end[d] = range.end;
  return box;
}

}  // namespace coxswain
