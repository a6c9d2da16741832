#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/element_names.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "client/checkpoint/piece_checkpoint.h"
#include "client/comm/rank_values.h"

// Which rank saves which pieces. Ranks describe theirs to each other by hashes,
// as the descriptions are as long as the tables, and all ranks' tables would
// pass through each of them.

namespace coxswain {
namespace {

// Of all ranks together, filled up to the most that one has.
constexpr int64_t kMostPieces = int64_t{1} << 23;

// What others have to know of a piece.
struct PieceHashes {
  uint64_t name = 0;    // parameter and kind
  uint64_t tensor = 0;  // what pieces of one name have in common
  uint64_t place = 0;   // all of it; 0: there is no piece
};
constexpr size_t kHashes = 3;

PieceHashes HashesOf(const TensorPiece& piece) {
  PieceHashes hashes;
  const std::string name = absl::StrCat(piece.parameter.size(), ":",
                                        piece.parameter, ":", piece.kind);
  const std::string tensor =
      absl::StrCat(NameOf(piece.dtype), ":", absl::StrJoin(piece.shape, ","),
                   ":", piece.step);
  hashes.name = StableHash(name);
  hashes.tensor = StableHash(tensor);
  const uint64_t place = StableHash(absl::StrCat(
      name, ":", tensor, ":", absl::StrJoin(piece.box.begin, ","), ":",
      absl::StrJoin(piece.box.end, ","), ":", piece.begin, ":", piece.end));
  hashes.place = place == 0 ? 1 : place;
  return hashes;
}

// The pieces of all ranks, as hashes.
class AllPieces {
 public:
  AllPieces(std::vector<int64_t> values, size_t most)
      : values_(std::move(values)), most_(most) {}

  size_t ranks() const { return values_.size() / (most_ * kHashes); }
  PieceHashes of(size_t rank, size_t piece) const {
    const int64_t* const at = values_.data() + (rank * most_ + piece) * kHashes;
    return {static_cast<uint64_t>(at[0]), static_cast<uint64_t>(at[1]),
            static_cast<uint64_t>(at[2])};
  }
  // Calls take(rank, piece, hashes) for each, those of rank 0 first.
  template <typename Take>
  void ForEach(const Take& take) const {
    for (size_t rank = 0; rank < ranks(); ++rank) {
      for (size_t piece = 0; piece < most_; ++piece) {
        const PieceHashes hashes = of(rank, piece);
        if (hashes.place == 0) break;
        take(rank, piece, hashes);
      }
    }
  }

 private:
  const std::vector<int64_t> values_;
  const size_t most_;
};

absl::StatusOr<AllPieces> GatherPieces(Communicator& communicator,
                                       const std::vector<TensorPiece>& pieces,
                                       absl::Duration timeout) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> most,
      ReduceValues(communicator, {static_cast<int64_t>(pieces.size())},
                   ReduceOp::kMax, timeout));
  if (most[0] > kMostPieces / communicator.size()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a rank has ", most[0], " pieces to save, and each of ",
        communicator.size(), " ranks may have ",
        kMostPieces / communicator.size(), "; save fewer and larger ones"));
  }
  std::vector<int64_t> own(static_cast<size_t>(std::max<int64_t>(most[0], 1)) *
                           kHashes);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const PieceHashes hashes = HashesOf(pieces[i]);
    own[i * kHashes] = static_cast<int64_t>(hashes.name);
    own[i * kHashes + 1] = static_cast<int64_t>(hashes.tensor);
    own[i * kHashes + 2] = static_cast<int64_t>(hashes.place);
  }
  const size_t each = own.size() / kHashes;
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<int64_t> all,
                            GatherValues(communicator, own, timeout));
  return AllPieces(std::move(all), each);
}

// Fails, on all ranks, if pieces of one name are not of one tensor. A rank that
// has such a piece names it.
absl::Status CheckAlike(const AllPieces& all,
                        const std::vector<TensorPiece>& mine, size_t me) {
  std::unordered_map<uint64_t, std::pair<uint64_t, size_t>> tensors;
  bool odd = false;
  std::string text;
  all.ForEach([&](size_t rank, size_t piece, const PieceHashes& hashes) {
    const auto [known, is_new] =
        tensors.try_emplace(hashes.name, hashes.tensor, rank);
    if (is_new || known->second.first == hashes.tensor) return;
    odd = true;
    if (!text.empty() || rank != me) return;
    text = absl::StrCat(mine[piece].kind, " of ", mine[piece].parameter,
                        " has another shape, type or step here than on rank ",
                        known->second.second);
  });
  if (!odd) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      text.empty() ? "a rank has a tensor of another shape, type or step than "
                     "others; its error names it"
                   : text,
      ": nothing is saved; save after the same step of one model on all "
      "ranks"));
}

}  // namespace

absl::StatusOr<PieceShare> SharePieces(Communicator& communicator,
                                       const std::vector<TensorPiece>& pieces,
                                       const absl::Status& mine,
                                       absl::Duration timeout) {
  absl::Status ready = mine;
  for (const TensorPiece& piece : pieces) {
    if (ready.ok()) ready = CheckPiece(piece);
  }
  COXSWAIN_RETURN_IF_ERROR(
      Agree(communicator, ready, "describe its pieces", timeout));
  COXSWAIN_ASSIGN_OR_RETURN(const AllPieces all,
                            GatherPieces(communicator, pieces, timeout));
  const auto me = static_cast<size_t>(communicator.rank());
  COXSWAIN_RETURN_IF_ERROR(CheckAlike(all, pieces, me));
  PieceShare share;
  std::unordered_set<uint64_t> places;
  all.ForEach([&](size_t rank, size_t piece, const PieceHashes& hashes) {
    if (!places.insert(hashes.place).second) return;
    ++share.total;
    if (rank == me) share.own.push_back(piece);
  });
  return share;
}

}  // namespace coxswain
