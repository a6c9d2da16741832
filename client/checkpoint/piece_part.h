#ifndef COXSWAIN_CLIENT_CHECKPOINT_PIECE_PART_H_
#define COXSWAIN_CLIENT_CHECKPOINT_PIECE_PART_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/checkpoint/checkpoint_client.h"
#include "client/shard/piece.h"
#include "client/shard/piece_table.h"

// One rank's shard of a checkpoint of pieces; docs/piece-format.md has its
// bytes. For piece_checkpoint.h and the files of this folder.

namespace coxswain {

// In a checkpoint's metadata: how many pieces it has. Those without it have no
// pieces.
constexpr char kPiecesLabel[] = "pieces";

// A part has a checksum for so many bytes each, so that a reader of some knows
// that they are intact.
constexpr int64_t kPieceBlockBytes = int64_t{64} << 10;

// Returns the bytes of a part: the table, the elements, `state`, which is
// opaque here, and the checksums. Fails as CheckMemory and SerializePieceTable.
absl::StatusOr<std::string> SerializePiecePart(
    const std::vector<PieceMemory>& pieces, absl::string_view state);

// Returns how many bytes of a part of that many are checksums; 0: it is too
// short to be one.
int64_t PieceSumBytes(int64_t part_bytes);

// Reads ranges of one part, and nothing else of it. Holds its checksums, and
// one block at a time. Errors name the part:
//   DATA_LOSS            it is damaged, or no part; or is gone
//   FAILED_PRECONDITION  a later version wrote it
//   others               as CheckpointClient::LoadRanges
// Thread-compatible; the client outlives it.
class PiecePart {
 public:
  // Of a part of `bytes` bytes. Reads its first block and its checksums.
  static absl::StatusOr<PiecePart> Open(CheckpointClient* checkpoints,
                                        std::string id, int number,
                                        int64_t bytes);

  // Returns how long the table is that LoadTable loads.
  int64_t table_bytes() const { return table_bytes_; }
  absl::StatusOr<PieceTable> LoadTable();

  // Passes each block that has some of these ranges, which ascend, once its
  // checksum has been found right.
  using TakeBlock =
      std::function<void(int64_t offset, absl::string_view block)>;
  absl::Status ReadBlocks(const std::vector<ShardRange>& ranges,
                          const TakeBlock& take);

  // Returns what was saved as `state`.
  absl::StatusOr<std::string> ReadState();

  // Returns how many bytes have been read.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  PiecePart(CheckpointClient* checkpoints, std::string id, int number,
            int64_t bytes);

  absl::Status ReadHead();
  absl::Status CheckBlock(int64_t block, absl::string_view bytes) const;
  int64_t BlockBytes(int64_t block) const;
  // Returns [offset, offset + bytes).
  absl::StatusOr<std::string> Read(int64_t offset, int64_t bytes);
  absl::Status Damaged(absl::string_view what) const;
  absl::Status Named(const absl::Status& status) const;

  CheckpointClient* checkpoints_;
  std::string id_;
  int number_;
  int64_t bytes_;  // that have checksums
  std::string sums_;
  std::string first_;  // block
  int64_t table_bytes_ = 0;
  int64_t state_begin_ = -1;  // once the table is loaded
  int64_t bytes_read_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_PIECE_PART_H_
