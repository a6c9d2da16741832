#ifndef COXSWAIN_CLIENT_CHECKPOINT_PIECE_CHECKPOINT_H_
#define COXSWAIN_CLIENT_CHECKPOINT_PIECE_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/checkpoint/checkpoint_client.h"
#include "client/checkpoint/piece_part.h"
#include "client/checkpoint/save_together.h"
#include "client/comm/communicator.h"
#include "client/shard/piece.h"
#include "client/shard/piece_index.h"

// Checkpoints of a sharded model: each rank saves its own pieces, all ranks at
// once, and a rank of any world size and mesh loads those that it is to have.
//
//   every rank:  SavePieces(checkpoints, world, label, its pieces)
//   later:       auto saved = PieceCheckpoint::Open(checkpoints)
//                saved->Load(pieces of the new mesh)

namespace coxswain {

// Which pieces of a rank are to be saved.
struct PieceShare {
  std::vector<size_t> own;  // those that no lower rank has as well
  int64_t total = 0;        // pieces that all ranks save
};

// Divides what the ranks have: of a piece that several have, replicas do, the
// lowest one saves it. Collective: `mine` is this rank's error before, if it
// has one. Fails alike on all ranks:
//   FAILED_PRECONDITION  two ranks have pieces of one kind and parameter with
//                        other shapes, types or steps
//   RESOURCE_EXHAUSTED   more pieces than ranks can send each other
//   ABORTED              another rank had an error
absl::StatusOr<PieceShare> SharePieces(
    Communicator& communicator, const std::vector<TensorPiece>& pieces,
    const absl::Status& mine, absl::Duration timeout = kAgreementTimeout);

// Returns those of these that this rank saves, and notes in the label how many
// all ranks do. Collective, as SharePieces; fails too where CheckMemory does.
absl::StatusOr<std::vector<PieceMemory>> ShareOfPieces(
    Communicator& communicator, const std::vector<PieceMemory>& pieces,
    CheckpointLabel* label, absl::Duration timeout = kAgreementTimeout);

// Saves the pieces of all ranks as one checkpoint, and with each rank's some
// bytes of its own. Collective: all ranks of `communicator` call it, between
// steps, with the same label. A rank uploads its own pieces, of replicas the
// lowest rank; rank 0 commits once all have uploaded. Only reads the pieces'
// memory; takes as much again while it runs. Returns the checkpoint's id on all
// ranks, or an error on all of them (unless the communicator itself fails in
// between), which leaves earlier checkpoints as they were.
absl::StatusOr<std::string> SavePieces(
    CheckpointClient& checkpoints, Communicator& communicator,
    CheckpointLabel label, const std::vector<PieceMemory>& pieces,
    absl::string_view state = {}, absl::Duration timeout = kAgreementTimeout);

// How much of a checkpoint a reader takes at most. Checked before it is
// read.
struct PieceLimits {
  int parts = 1 << 16;
  // Tables and checksums of all parts, which a reader holds.
  int64_t index_bytes = int64_t{1} << 30;
};

// A complete checkpoint of pieces, read by ranges: a rank reads the tables of
// all parts, and then only the blocks that have elements that it wants. Not
// collective. Thread-compatible; the client outlives it.
class PieceCheckpoint {
 public:
  // Opens the one named, or the newest if `id` is empty. Ranks that are to load
  // the same one agree on its id before (AgreeOnNewest).
  //   NOT_FOUND            there is none
  //   FAILED_PRECONDITION  it has no pieces, or is of a later version, or its
  //                        parts are not of one model
  //   RESOURCE_EXHAUSTED   a limit is passed
  //   DATA_LOSS            a part is damaged or missing; names it
  //   UNIMPLEMENTED        the coordinator's version cannot send parts of
  //   shards
  static absl::StatusOr<PieceCheckpoint> Open(CheckpointClient& checkpoints,
                                              absl::string_view id = "",
                                              const PieceLimits& limits = {});

  const CheckpointDescription& description() const { return description_; }
  // Returns what it has, and with StepOf the steps of each parameter.
  const PieceIndex& index() const { return index_; }

  // Fills the memory of all these pieces with what was saved, bit by bit; their
  // steps do not matter. Writes nothing if one of them is not there:
  //   INVALID_ARGUMENT     it is no piece, or has no memory
  //   NOT_FOUND            no part has some element
  //   FAILED_PRECONDITION  it was saved with another shape or type
  // Later errors leave some of the memory written:
  //   DATA_LOSS            a part is damaged; names it
  absl::Status Load(const std::vector<PieceMemory>& wanted);

  // Returns the bytes that this rank of those that saved had given as `state`.
  absl::StatusOr<std::string> LoadState(int rank);

  // Returns how many bytes have been read from the coordinator.
  int64_t bytes_read() const;

 private:
  // Where a piece's elements begin.
  struct Place {
    int part = 0;
    int64_t offset = 0;
  };
  struct Copy;

  PieceCheckpoint(CheckpointDescription description, PieceIndex index,
                  std::vector<Place> places, std::vector<PiecePart> parts)
      : description_(std::move(description)),
        index_(std::move(index)),
        places_(std::move(places)),
        parts_(std::move(parts)) {}

  // Find of the index, its errors with the checkpoint's id.
  absl::StatusOr<std::vector<PieceRead>> Find(const PieceMemory& wanted) const;
  absl::Status Make(std::vector<Copy>* copies);

  CheckpointDescription description_;
  PieceIndex index_;
  std::vector<Place> places_;  // of index_.pieces()
  std::vector<PiecePart> parts_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_PIECE_CHECKPOINT_H_
