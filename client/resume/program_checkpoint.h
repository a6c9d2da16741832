#ifndef COXSWAIN_CLIENT_RESUME_PROGRAM_CHECKPOINT_H_
#define COXSWAIN_CLIENT_RESUME_PROGRAM_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/accumulate/accumulator.h"
#include "client/checkpoint/async_checkpoint.h"
#include "client/checkpoint/piece_checkpoint.h"
#include "client/checkpoint/training_state.h"
#include "client/reduce/averager.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "client/session/session.h"
#include "client/shard/piece.h"
#include "schedule/plan.h"

namespace coxswain {

// Saves the training state of a program of any framework, and resumes from it:
// the bytes of its model and of its optimizer, the hook's state (and the
// averager's), the positions of the plan's streams, and bytes of the program's
// own. client/torch/module_checkpoint.h is this for libtorch, and describes
// when to call what.
//
// Life-cycle: one session, which outlives it, and one object of it. Its
// destructor waits as that of AsyncCheckpoint: for ranks that are connecting,
// up to the session's collective_timeout, or 5 minutes where rank 0 is behind;
// the end of the generation ends both. Threading: the thread that trains.
class ProgramCheckpoint {
 public:
  struct Options {
    // Makes the hook that a plan names; required.
    std::function<absl::StatusOr<std::unique_ptr<Hook>>(const schedule::Plan&)>
        make_hook;
    // As those of AsyncCheckpoint.
    bool own_errors = false;
    CheckpointRetention retention;
    std::function<void(const SaveReport&)> on_report;
  };
  using Blobs = std::map<std::string, std::string>;

  // Bytes that only the program's framework understands.
  struct Program {
    // Writes over `bytes`, whose memory is used again where it suffices.
    std::function<absl::Status(std::string* bytes)> save_model;
    std::function<absl::Status(absl::string_view bytes)> load_model;
    std::function<absl::StatusOr<std::string>()> save_optimizer;
    std::function<absl::Status(absl::string_view bytes)> load_optimizer;
    // Of a sharded model: what this rank keeps of it, and how it is loaded. It
    // takes the place of save_optimizer and load_optimizer; save_model has what
    // all ranks have alike, such as buffers, and no pieces. Both are null, or
    // neither is.
    std::function<absl::Status(std::vector<PieceMemory>*)> fill_pieces;
    std::function<absl::Status(PieceCheckpoint& from)> load_pieces;
    // Of a model that ranks divide: which part of it each rank of the session
    // has, by a name without commas. Ranks of one part have hooks of the same
    // gradients. Each saves its own errors then (own_errors); those of a part
    // that was cut otherwise are cut from its (LoadHook). Empty: all ranks have
    // all of it.
    std::vector<std::string> hook_parts;
    // Which part of the whole model's this rank's divided parameters are.
    ParameterBoxes boxes;
    // What else the framework keeps that is the same on all ranks, by a name
    // that begins with a dot. Where a checkpoint has none of it, it stays as it
    // is.
    struct Item {
      std::function<std::string()> save;
      std::function<absl::Status(absl::string_view)> load;
    };
    std::map<std::string, Item> items;
  };

  // The training state between two steps.
  struct Training {
    Accumulator* accumulator = nullptr;
    Hook* hook = nullptr;
    // Makes of a hook that a plan names one like `hook`; null: it is one. See
    // Reducer::HookCopier.
    std::function<std::unique_ptr<Hook>(std::unique_ptr<Hook>)> copy_hook;
    Averager* averager = nullptr;  // may be null
    std::vector<ParameterSpec> parameters;
    // Exchanges whose decision this rank has.
    int64_t decided = 0;
    // Makes the ranks' parameters equal, where an averager has let them
    // diverge.
    std::function<absl::Status()> unite;
  };

  // The state that a program resumes from.
  struct Resumed {
    std::string checkpoint_id;
    int64_t step = 0;
    Blobs blobs;  // the program's own
  };

  ProgramCheckpoint(Session& session, Program program, const Options& options);

  // After a step, on all ranks alike: copies the state; does nothing if this
  // step has been saved. Returns whether it copied. `blobs` are the same on all
  // ranks; their names begin with no dot. Errors are reported and logged, and
  // do not end training: only that of `unite` is returned. In the middle of a
  // window nothing is copied, which is logged (checkpoint_not_copied).
  absl::StatusOr<bool> Save(const Training& training, absl::string_view reason,
                            const Blobs& blobs = {});

  // Waits for the save in progress, before the session is left. As
  // AsyncCheckpoint::Finish.
  absl::Status Finish(absl::Duration timeout) { return saver_.Finish(timeout); }

  // Resumes from a checkpoint of this job, of any world size: the one named, or
  // "newest", which is then the same for all ranks. All ranks call it before
  // the first step.
  //   NOT_FOUND            there is none
  //   FAILED_PRECONDITION  it is of another model or hook: lists what differs
  absl::StatusOr<Resumed> Resume(absl::string_view id,
                                 const Training& training);

  // As Resume; returns nothing, and logs it, if `id` is "newest" and the job
  // has no checkpoint yet.
  absl::StatusOr<std::optional<Resumed>> ResumeIfAny(absl::string_view id,
                                                     const Training& training);

  const AsyncCheckpoint& saver() const { return saver_; }

 private:
  absl::Status Apply(const TrainingState& state, const Training& training);
  absl::Status LoadOptimizer(const TrainingState& state);
  absl::Status LoadHookOf(const TrainingState& state, const Training& training);
  absl::Status LoadItems(const TrainingState& state);
  // Returns which of the ranks with hooks of the same gradients this is.
  TrainingRank Reader(const Training& training) const;
  absl::Status Fill(const Blobs& own, AsyncCheckpoint::Blobs* blobs) const;

  Session& session_;
  const Program program_;
  const Options options_;
  int64_t saved_ = -1;      // decisions when it was saved last
  int64_t agreements_ = 0;  // on which checkpoint is the newest
  AsyncCheckpoint saver_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RESUME_PROGRAM_CHECKPOINT_H_
