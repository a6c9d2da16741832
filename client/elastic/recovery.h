#ifndef COXSWAIN_CLIENT_ELASTIC_RECOVERY_H_
#define COXSWAIN_CLIENT_ELASTIC_RECOVERY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mesh.h"
#include "client/comm/communicator.h"
#include "client/elastic/catch_up/catch_up_target.h"
#include "client/elastic/elastic_state.h"
#include "client/elastic/replay.h"
#include "client/reduce/hook_state.h"

namespace coxswain {

// Whether ranks that hold different bits of the same step, and no majority the
// same, go back to the last step of which they held the same, and take the
// steps since then again, so that the rank that was wrong is found. It takes
// effect where the plan has a checksum_every, and needs memory on each rank:
// docs/elastic.md has how much.
enum class ReplayMode {
  kTwoRanks,  // where the world has two ranks, which have no majority
  kAlways,    // in a world of any size
  kNever,     // the job ends with DATA_LOSS
};

struct RecoveryOptions {
  // The limit of ElasticState::Save, and of a hook's state.
  int64_t max_bytes = int64_t{16} << 30;
  // For each collective.
  absl::Duration timeout = absl::Minutes(5);
  // How the ranks of the new generation are divided: ElasticRun sets it to the
  // session's.
  Mesh mesh;
  ReplayMode replay = ReplayMode::kTwoRanks;
  // So many replays in a row, without a step of which the ranks held the same
  // bits after it, end the job with DATA_LOSS. The same on all ranks.
  int max_replays = 3;
};

// What a rank has from earlier generations: kept by ElasticRun. A new worker's
// is default-constructed.
struct RankStanding {
  bool has_state = false;
  int64_t lineage = 0;    // of the state: see RankFacts; 0: none yet
  int64_t recovered = 0;  // the last generation that it began to train in
  int64_t trained = 0;    // see RankFacts
  // What it has taken of the members' state while it waited, and what gives it
  // up; unset: nothing. It has no state of its own then.
  std::optional<CaughtUp> caught_up;
  CatchUpTarget* catch_up = nullptr;
  // Hook::SaveOwn, and the world size that its errors are scaled for.
  std::optional<HookState> hook_state;
  int hook_world = 0;
  // What it keeps to take steps again.
  Replay replay;
};

struct Recovered {
  int64_t step = 0;
  int source = -1;      // whose state was copied by some rank; -1: none
  bool copied = false;  // by this one
  // This one had taken it before, while it waited.
  bool caught_up = false;
  // No rank had a state of a generation before: training begins.
  bool began = false;
  // Training that is lost, and what is replayed. The same on all ranks, except
  // on newcomers.
  std::vector<std::string> warnings;
  // For Hook::LoadOwn; unset if no rank has any, or one of the slices of hybrid
  // sharding has none.
  std::optional<HookState> hook_state;
  double error_scale = 1;
};

// Brings all ranks of a new generation to the same state, that of the last step
// that any of them has committed (see PlanRecovery), and checks that they hold
// the same bits then. Collective.
//
// Where they do not, and no majority is right, all go back to a step of which
// they held the same, if they have kept copies of it (see PlanReplay), and
// recover that.
//
// A rank copies what it lacks: tensors in place, the rest as bytes, and of the
// hook's state what all ranks have in common. Survivors keep their own errors,
// scaled by W'/W; those of a newcomer are zero, and so are those of all ranks
// in a hook's mode=pytorch when the world changes: that mode's errors are only
// valid together.
//
// A rank has the source's state once all of it has come, loose tensors and
// loose bytes too. If a peer ends before that, it restores what it had, and
// needs memory for that; a rank without a state stays without. So the remaining
// ranks can begin any recovery again. The hook's state follows: if no rank that
// has one is left by then, the hook begins anew.
//
// Errors: those of PlanRecovery, on all ranks; of the communicator; of the
// state, whose exceptions are INTERNAL, after which the communicator is
// aborted, as the peers wait for it; DATA_LOSS on a rank that could not restore
// what it had.
absl::StatusOr<Recovered> Recover(Communicator& communicator,
                                  int64_t generation,
                                  const RecoveryOptions& options,
                                  ElasticState* state, RankStanding* standing);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_RECOVERY_H_
