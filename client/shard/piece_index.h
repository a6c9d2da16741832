#ifndef COXSWAIN_CLIENT_SHARD_PIECE_INDEX_H_
#define COXSWAIN_CLIENT_SHARD_PIECE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/shard/piece.h"

namespace coxswain {

// What to copy for a piece: `count` elements from element `from` on of the
// piece with this number become those from element `to` on of the one wanted.
struct PieceRead {
  size_t piece = 0;
  int64_t from = 0;
  int64_t to = 0;
  int64_t count = 0;
};

// Pieces of a model, from which others are cut: of any number of slices, any
// boxes, to any others. Elements keep their bits. Immutable; thread-safe.
//
//   auto index = PieceIndex::Create(pieces of all ranks that saved);
//   for each piece that this rank is to have:
//     for (const PieceRead& read : *index->Find(want)) copy
class PieceIndex {
 public:
  // Fails with INVALID_ARGUMENT for what CheckPiece refuses, and with
  // FAILED_PRECONDITION if two pieces of one kind and parameter are of
  // different shapes, types or steps.
  static absl::StatusOr<PieceIndex> Create(std::vector<TensorPiece> pieces);

  const std::vector<TensorPiece>& pieces() const { return pieces_; }

  // Returns what gives each element of `want` exactly once, in order. Where
  // several pieces have an element, as replicas do, it comes from the first
  // one. Does not look at want.step.
  //   INVALID_ARGUMENT     as CheckPiece
  //   NOT_FOUND            no piece has some element; its message has which
  //   FAILED_PRECONDITION  the pieces are of another shape or type
  absl::StatusOr<std::vector<PieceRead>> Find(const TensorPiece& want) const;

  // Returns the steps that a parameter had taken when the pieces of a kind were
  // saved; NOT_FOUND if there are none.
  absl::StatusOr<int64_t> StepOf(const std::string& parameter,
                                 const std::string& kind) const;

 private:
  PieceIndex() = default;

  absl::StatusOr<const std::vector<size_t>*> Named(
      const std::string& parameter, const std::string& kind) const;

  std::vector<TensorPiece> pieces_;
  // Numbers of pieces by parameter and kind.
  std::map<std::pair<std::string, std::string>, std::vector<size_t>> named_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SHARD_PIECE_INDEX_H_
