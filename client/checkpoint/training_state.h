#ifndef COXSWAIN_CLIENT_CHECKPOINT_TRAINING_STATE_H_
#define COXSWAIN_CLIENT_CHECKPOINT_TRAINING_STATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/checkpoint/checkpoint_client.h"
#include "client/checkpoint/hook_cut.h"
#include "client/comm/communicator.h"
#include "client/reduce/averager.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "client/reduce/hook_state.h"

namespace coxswain {

// What the ranks that had one part of the model saved of their hooks.
struct SavedHookPart {
  std::vector<HookParameter> parameters;
  // Their own, in order; or one that is merged already.
  std::vector<HookState> states;
  bool own = true;
};

// What a training program needs to go on in new processes, on any number of
// ranks: the hook's state, and named bytes of its own (parameters, optimizer
// state, position of the sampler), opaque here.
struct TrainingState {
  std::string checkpoint_id;
  int64_t step = 0;
  std::map<std::string, std::string> metadata;
  HookState hook;
  HookState averager;  // without a spec if there was no averager
  // Whether hook, or own, is of the part of the model that the reader has.
  bool of_part = true;
  // Saved with AsyncCheckpoint's own_errors, by rank, in place of `hook`; see
  // LoadHook. Without a spec where it was not loaded.
  std::vector<HookState> own;
  // Where no rank that saved had the reader's part: what is cut for it.
  std::vector<SavedHookPart> parts;
  std::map<std::string, std::string> blobs;
};

// In a checkpoint's metadata: what its errors are.
constexpr char kErrorsLabel[] = "errors";
constexpr char kOwnErrors[] = "own";
// Where its ranks had parts of the model, each with a hook of its own: which
// part each rank had, with commas between them.
constexpr char kHookPartsLabel[] = "hook_parts";

// The rank that loads a state.
struct TrainingRank {
  int rank = 0;
  int world_size = 0;  // 0: not known
  // Which part of the model it has, and rank and world_size are among those
  // that have the same; empty: all of it.
  std::string part = {};
  // What its hook has a state of; empty: not known, and nothing is cut.
  std::vector<HookParameter> parameters = {};
};

// Saves the state after optimizer step `step`. Collective: all ranks of
// `communicator` call it, between steps and with nothing in flight. Every rank
// uploads its shard of the hook's state; `blobs` are the same on all ranks, and
// rank 0's are uploaded. Rank 0 commits once all ranks have uploaded. With an
// averager, call AverageNow before the parameters are copied. Fails with
// FAILED_PRECONDITION if the ranks' parameters differ, and with
// INVALID_ARGUMENT if the hook needs an averager and there is none.
//
// Returns OK on all ranks or on none, except when the communicator itself fails
// in between: the rank that met an error returns it, the others return ABORTED.
// A failed save leaves earlier checkpoints as they were.
absl::Status SaveTrainingState(
    CheckpointClient& checkpoints, Communicator& communicator, int64_t step,
    Hook& hook, const std::map<std::string, std::string>& blobs,
    const std::map<std::string, std::string>& metadata = {},
    Averager* averager = nullptr);

// Loads a checkpoint: the one named, or the newest if `id` is empty. The
// caller hands `hook` to Hook::LoadState, and `averager` to
// Averager::LoadState. Not collective: each rank downloads
// for itself.
//   NOT_FOUND   there is none
//   DATA_LOSS   what is stored is not a training state; its message has why
// Where each rank's own errors were saved, a reader that gives its rank and
// world size loads no more than it needs. Of parts of a model `own` has the
// ranks of the reader's part, in order; where there are none, `parts` has those
// that have elements of the reader's parameters, and without any (a checkpoint
// of an earlier version does not describe its parts) `hook` is another part's.
absl::StatusOr<TrainingState> LoadTrainingState(
    CheckpointClient& checkpoints, absl::string_view id = "",
    const TrainingRank& reader = {});

// Loads the state into a hook that is configured with `parameters` for the
// reader's world size: by Hook::LoadState or, on as many ranks as have saved
// their own errors, by Hook::LoadOwn, after which training continues bit by
// bit. On another number of ranks the mean of what was saved is formed here,
// for which `make_hook` makes hooks like this one, and memory for the errors of
// all ranks is needed. From other parts of the model what the reader has is cut
// out of these means (CutHookState), and what cannot be cut begins anew, which
// is logged (hook_state_cut).
//   FAILED_PRECONDITION  as Hook::LoadState
using HookMaker = std::function<absl::StatusOr<std::unique_ptr<Hook>>()>;
absl::Status LoadHook(const TrainingState& state, const TrainingRank& reader,
                      const std::vector<ParameterSpec>& parameters,
                      const HookMaker& make_hook, Hook& hook);

// Returns the merged state that SaveState would return on ranks with these own
// states (SaveOwn).
absl::StatusOr<HookState> MeanOfOwnStates(
    const std::vector<HookState>& own,
    const std::vector<ParameterSpec>& parameters, const HookMaker& make_hook);

// One rank's shard.
struct TrainingShard {
  HookState hook;
  HookState averager;  // without a spec if there is none
  std::map<std::string, std::string> blobs;
};

// Return the bytes of a shard, and a shard of its bytes: the magic "CXTS0002",
// then, each preceded by its length as 8 little-endian bytes: the hook's state;
// the averager's state, of length 0 if there is none; and per blob, in order of
// name, the name and the bytes, their number first as 8 bytes. Parse does not
// trust its input: it fails with DATA_LOSS, naming what does not fit.
std::string SerializeTrainingShard(const TrainingShard& shard);
absl::StatusOr<TrainingShard> ParseTrainingShard(absl::string_view bytes);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_TRAINING_STATE_H_
