#ifndef COXSWAIN_CLIENT_CHECKPOINT_ASYNC_CHECKPOINT_H_
#define COXSWAIN_CLIENT_CHECKPOINT_ASYNC_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "client/checkpoint/checkpoint_client.h"
#include "client/checkpoint/piece_part.h"
#include "client/checkpoint/training_state.h"
#include "client/comm/communicator.h"
#include "client/reduce/averager.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "client/shard/piece.h"
#include "client/store/store_client.h"

namespace coxswain {

// What became of one snapshot.
struct SaveReport {
  int64_t step = 0;
  std::string reason;         // why it was taken
  std::string checkpoint_id;  // if it was saved
  absl::Duration pause;       // of this rank's training, for the copy
  absl::Duration took;        // the rest, beside training
  // ABORTED also on ranks that succeeded, if another one failed; CANCELLED if a
  // newer snapshot has taken its place.
  absl::Status status;
};

// Saves training state while training goes on. At a step that all ranks have
// agreed on (schedule::Decision::checkpoint) each rank calls Snapshot, which
// copies what belongs to the checkpoint and returns; a thread of this object
// does the rest: forms the mean of the ranks' errors from the copies, on a
// communicator of its own, uploads this rank's shard, and, on rank 0, commits.
// The result equals that of SaveTrainingState in the same step, bit for bit.
//
// One save is in progress at a time, and one more may wait. A newer snapshot
// replaces the one that waits; which one that is may differ from rank to rank,
// so the ranks agree first on the step that they save: the newest that any of
// them has copied. Training never waits, and an error of a save never ends it:
// it is logged, passed to on_report, and kept in status().
//
// Life-cycle: one generation; ends before its session does. The end of the
// generation ends a save (ABORTED). Threading: Snapshot and Finish are for the
// thread that trains, the rest for any.
class AsyncCheckpoint {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    // Connects all ranks; called before the first save with 0, and with the
    // next number after each error. A rank without an error calls it too, once
    // it finds that the others have aborted its communicator. The number is how
    // often this rank has tried, and another may have tried less often:
    // `connect` decides how they find each other. Called in the object's
    // thread; the end of the generation ends it.
    std::function<absl::StatusOr<std::shared_ptr<Communicator>>(int number)>
        connect;
    // Saves each rank's own error in place of the mean. A resume on as many
    // ranks then continues bit by bit, and one on another number forms the mean
    // (LoadHook); the errors take as many times the bytes. Not with an
    // averager.
    bool own_errors = false;
    // Which earlier checkpoints are kept once one is saved; rank 0's counts.
    CheckpointRetention retention;
    // The longest wait for other ranks.
    absl::Duration timeout = absl::Minutes(15);
    const Clock* clock = Clock::Real();
    // Called in the object's thread, or in Snapshot.
    std::function<void(const SaveReport&)> on_report;
  };

  using Blobs = std::map<std::string, std::string>;

  // What a checkpoint is made of, in the thread that trains, between steps.
  struct Source {
    int64_t step = 0;  // optimizer steps done
    std::string reason;
    std::map<std::string, std::string> metadata;  // the same on all ranks
    const Hook* hook = nullptr;
    // Makes another hook like `hook`, which holds the copy in the other thread.
    HookMaker make_hook;
    std::vector<ParameterSpec> parameters;  // that it is configured with
    // Which part of the whole model's those are that ranks divide.
    ParameterBoxes boxes;
    // May be null. Its SaveState is called with a communicator on which it can
    // exchange nothing. The ranks' parameters must be equal.
    Averager* averager = nullptr;
    // Copies everything else into blobs that may be filled from some snapshots
    // before: their memory is used again. Called on rank 0 only, whose blobs
    // are uploaded. May be null.
    std::function<absl::Status(Blobs*)> fill_blobs;
    // It is called on every rank, and fills blobs of names that no other rank
    // has.
    bool ranks_have_blobs = false;
    // Of a sharded model, on all ranks: fills in the pieces that this one has,
    // whose elements are copied before Snapshot returns. The checkpoint is one
    // that PieceCheckpoint loads, see SavePieces. May be null.
    std::function<absl::Status(std::vector<PieceMemory>*)> fill_pieces;
  };

  AsyncCheckpoint(const CheckpointClient& checkpoints, Options options);
  // Cancels what is in progress, see Finish. Waits for a call of `connect`,
  // `make_hook` or on_report as long as it takes (so `connect` needs a deadline
  // of its own), and then 2 s at most: a transfer that takes longer, or the
  // coordinator's answer, continues by itself, and uses nothing of the owner's.
  ~AsyncCheckpoint();
  AsyncCheckpoint(const AsyncCheckpoint&) = delete;
  AsyncCheckpoint& operator=(const AsyncCheckpoint&) = delete;

  // Copies the state; all ranks call it after the same steps. An error is this
  // rank's alone, and makes the checkpoint of this step fail on all of them.
  absl::Status Snapshot(const Source& source);

  // Waits until no save is in progress, and returns the status of the last one.
  // Fails with DEADLINE_EXCEEDED after `timeout`.
  absl::Status Finish(absl::Duration timeout);

  // Returns the status of the last save that has ended; OK before.
  absl::Status status() const;
  std::optional<SaveReport> last() const;
  bool busy() const;

 private:
  class Core;
  const std::shared_ptr<Core> core_;
};

// Decides which of a checkpoint's connections the ranks of a generation make
// next. Errors may reach one rank alone, so ranks that each counted their own
// attempts would wait for each other under different numbers forever. Rank 0
// counts, and publishes the number in the store; the others wait for one that
// they have not tried yet.
//
// For AsyncCheckpoint::Options::connect. Life-cycle: one generation, as the
// store. Thread-compatible.
class ConnectionNumber {
 public:
  // `timeout`: how long the others wait for rank 0.
  ConnectionNumber(int rank, StoreClient* store, absl::Duration timeout)
      : rank_(rank), store_(*store), timeout_(timeout) {}

  // Returns the number of the next attempt, from 1. Blocks. Fails with
  // DEADLINE_EXCEEDED if rank 0 begins no new attempt, and with errors of the
  // store.
  absl::StatusOr<int64_t> Next();
  // The last attempt has failed: on rank 0, ranks that come later do not try
  // it.
  void GiveUp();

 private:
  absl::StatusOr<int64_t> Await();

  const int rank_;
  StoreClient& store_;
  const absl::Duration timeout_;
  int64_t last_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_ASYNC_CHECKPOINT_H_
