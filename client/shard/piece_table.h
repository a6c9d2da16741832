#ifndef COXSWAIN_CLIENT_SHARD_PIECE_TABLE_H_
#define COXSWAIN_CLIENT_SHARD_PIECE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/shard/piece.h"

namespace coxswain {

// What stands before the elements of one rank's pieces in a checkpoint: which
// pieces they are, and where each one's elements are. docs/piece-format.md has
// the bytes. Readers of other formats see by the first four bytes that this is
// none of theirs.
//
// A reader that wants some elements only needs three reads: kPieceHeadBytes
// from the start, PieceTableBytes of that, and then what a PieceIndex of the
// tables of all ranks names.
struct PieceTable {
  std::vector<TensorPiece> pieces;
  // Of each piece, its first element's byte from the start of the table.
  std::vector<int64_t> offsets;
  // The table with all elements.
  int64_t bytes = 0;
};

constexpr size_t kPieceHeadBytes = 16;
// No table is longer; about a million pieces.
constexpr int64_t kMaxPieceTableBytes = 256 << 20;
// Elements begin at multiples of this.
constexpr int64_t kPieceAlignment = 64;

// Returns the table of these pieces, which CheckPiece has passed, in this
// order. Fails with INVALID_ARGUMENT if it would be too long, or all of it
// 2^63 bytes or more.
absl::StatusOr<std::string> SerializePieceTable(
    const std::vector<TensorPiece>& pieces);

// Return how long a table is, by its first kPieceHeadBytes; and the table, of
// at least so many bytes. They do not trust their input, and allocate no more
// than a few times its length.
//   DATA_LOSS            these bytes are not a table, or are damaged
//   FAILED_PRECONDITION  a later version wrote it
absl::StatusOr<int64_t> PieceTableBytes(absl::string_view head);
absl::StatusOr<PieceTable> ParsePieceTable(absl::string_view bytes);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SHARD_PIECE_TABLE_H_
