#include "client/shard/piece_index.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/element_names.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

std::string TypeText(const TensorPiece& piece) {
  return absl::StrCat(NameOf(piece.dtype), " [",
                      absl::StrJoin(piece.shape, ", "), "]");
}

// Elements that are still missing, as ranges.
class Missing {
 public:
  explicit Missing(int64_t count) {
    if (count > 0) ranges_[0] = count;
  }

  bool none() const { return ranges_.empty(); }
  std::pair<int64_t, int64_t> first() const { return *ranges_.begin(); }

  // Takes out what is missing of [begin, end), and calls `taken` with each
  // range of it.
  template <typename Function>
  void Take(int64_t begin, int64_t end, const Function& taken) {
    auto range = ranges_.upper_bound(begin);
    if (range != ranges_.begin()) --range;
    while (range != ranges_.end() && range->first < end) {
      const auto [from, to] = *range;
      const int64_t first = std::max(from, begin);
      const int64_t last = std::min(to, end);
      if (first >= last) {
        ++range;
        continue;
      }
      range = ranges_.erase(range);
      if (from < first) ranges_[from] = first;
      if (last < to) range = ranges_.emplace(last, to).first;
      taken(first, last);
    }
  }

 private:
  std::map<int64_t, int64_t> ranges_;  // end by begin; they do not touch
};

// Joins neighbours that are in one run.
std::vector<PieceRead> Joined(std::vector<PieceRead> reads) {
  std::sort(reads.begin(), reads.end(),
            [](const PieceRead& a, const PieceRead& b) { return a.to < b.to; });
  std::vector<PieceRead> joined;
  for (const PieceRead& read : reads) {
    if (!joined.empty()) {
      PieceRead& last = joined.back();
      if (last.piece == read.piece && last.from + last.count == read.from &&
          last.to + last.count == read.to) {
        last.count += read.count;
        continue;
      }
    }
    joined.push_back(read);
  }
  return joined;
}

}  // namespace

absl::StatusOr<PieceIndex> PieceIndex::Create(std::vector<TensorPiece> pieces) {
  PieceIndex index;
  index.pieces_ = std::move(pieces);
  for (size_t i = 0; i < index.pieces_.size(); ++i) {
    const TensorPiece& piece = index.pieces_[i];
    COXSWAIN_RETURN_IF_ERROR(CheckPiece(piece));
    auto& named = index.named_[{piece.parameter, piece.kind}];
    named.push_back(i);
    const TensorPiece& first = index.pieces_[named[0]];
    if (piece.dtype != first.dtype || piece.shape != first.shape) {
      return absl::FailedPreconditionError(
          absl::StrCat("pieces of ", piece.kind, " of ", piece.parameter,
                       " are of ", TypeText(first), " and of ", TypeText(piece),
                       ": they are not of one model"));
    }
    if (piece.step != first.step) {
      return absl::FailedPreconditionError(
          absl::StrCat("pieces of ", piece.kind, " of ", piece.parameter,
                       " are of step ", first.step, " and of step ", piece.step,
                       ": they are not of one checkpoint"));
    }
  }
  return index;
}

absl::StatusOr<const std::vector<size_t>*> PieceIndex::Named(
    const std::string& parameter, const std::string& kind) const {
  const auto found = named_.find({parameter, kind});
  if (found != named_.end()) return &found->second;
  return absl::NotFoundError(absl::StrCat(
      "none of ", pieces_.size(), " pieces is of ", kind, " of ", parameter));
}

absl::StatusOr<int64_t> PieceIndex::StepOf(const std::string& parameter,
                                           const std::string& kind) const {
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<size_t>* const named,
                            Named(parameter, kind));
  return pieces_[(*named)[0]].step;
}

absl::StatusOr<std::vector<PieceRead>> PieceIndex::Find(
    const TensorPiece& want) const {
  COXSWAIN_RETURN_IF_ERROR(CheckPiece(want));
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<size_t>* const named,
                            Named(want.parameter, want.kind));
  const TensorPiece& first = pieces_[(*named)[0]];
  if (want.dtype != first.dtype || want.shape != first.shape) {
    return absl::FailedPreconditionError(absl::StrCat(
        want.kind, " of ", want.parameter, " is ", TypeText(want),
        " here and was ", TypeText(first),
        " where it was saved; load it into the model that saved it"));
  }
  std::vector<PieceRead> reads;
  Missing missing(want.count());
  for (const size_t number : *named) {
    if (missing.none()) break;
    for (const PieceRun& run : Intersect(pieces_[number], want)) {
      missing.Take(run.to, run.to + run.count, [&](int64_t begin, int64_t end) {
        reads.push_back(
            {number, run.from + begin - run.to, begin, end - begin});
      });
    }
  }
  if (missing.none()) return Joined(std::move(reads));
  const auto [begin, end] = missing.first();
  return absl::NotFoundError(absl::StrCat(
      "of ", Describe(want), ", those from ", want.begin + begin, " to ",
      want.begin + end - 1, " are in none of ", named->size(),
      " pieces: what a rank had of them is missing"));
}

}  // namespace coxswain
