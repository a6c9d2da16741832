#ifndef COXSWAIN_CLIENT_CHECKPOINT_CHECKPOINT_COPY_H_
#define COXSWAIN_CLIENT_CHECKPOINT_CHECKPOINT_COPY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/checkpoint/async_checkpoint.h"
#include "client/checkpoint/piece_part.h"
#include "client/checkpoint/save_together.h"
#include "client/checkpoint/training_state.h"
#include "client/comm/communicator.h"

// What AsyncCheckpoint holds between training and the save. For the files of
// this folder.

namespace coxswain {

// What one rank has in one step.
struct CheckpointCopy {
  CheckpointLabel label;
  std::string reason;
  absl::Time begun;
  absl::Duration pause;
  absl::Status status;  // of the copying
  HookState hook;
  HookState averager;  // without a spec if there is none
  HookMaker make_hook;
  std::vector<ParameterSpec> parameters;
  ParameterBoxes boxes;
  AsyncCheckpoint::Blobs blobs;
  bool sharded = false;
  std::vector<PieceMemory> pieces;  // in `elements`
  std::string elements;
};
using CopyPtr = std::unique_ptr<CheckpointCopy>;

// Memory of a copy that has been saved.
struct CopyMemory {
  AsyncCheckpoint::Blobs blobs;
  std::string elements;
};

// Copies the state of `source` while training pauses, into memory that is used
// again.
CopyPtr MakeCopy(const AsyncCheckpoint::Source& source,
                 const AsyncCheckpoint::Options& options, CopyMemory memory);

// Which steps the ranks have copied.
struct Offer {
  int64_t highest = 0;
  int64_t lowest = 0;
  bool failed = false;  // a rank could not copy its state
};

// Returns what the ranks offer, the same on all of them. Collective.
absl::StatusOr<Offer> ExchangeOffers(Communicator& communicator,
                                     const CheckpointCopy& mine,
                                     absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_CHECKPOINT_COPY_H_
