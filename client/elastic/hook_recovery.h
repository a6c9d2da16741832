#ifndef COXSWAIN_CLIENT_ELASTIC_HOOK_RECOVERY_H_
#define COXSWAIN_CLIENT_ELASTIC_HOOK_RECOVERY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mesh.h"
#include "client/comm/communicator.h"
#include "client/reduce/hook_state.h"

// How the ranks of a new generation come to their hook's state: what all have
// alike is that of one rank, and survivors keep their own errors.

namespace coxswain {

// What a rank reports of the hook's state (Hook::SaveOwn) that it has from
// earlier generations; numbers, to be gathered from all ranks.
struct HookFacts {
  int64_t world = 0;      // that its errors are scaled for; 0: it has none
  int64_t step = 0;       // committed steps
  int64_t shared = 0;     // hash of what all ranks have alike
  int64_t behind = 0;     // 1: the rest of its state is another rank's
  int64_t took_part = 0;  // 1: in all steps that the ranks go on from
  // With hybrid sharding, whose it is: see HybridSlice.
  int64_t slice = 0;
  int64_t slices = 0;
};

// Returns world, step and `shared`, of a state for so many ranks.
HookFacts HookFactsOf(const std::optional<HookState>& own, int own_world);

// What follows from the facts of all ranks, the same on all of them.
struct HookRecoveryPlan {
  // By rank: whose hook's state it goes on with, which it copies if it has
  // none, or another one. With hybrid sharding it is a rank with the slice that
  // this one has now. Empty: no rank goes on with any.
  std::vector<int> sources;
  std::vector<bool> copies;  // by rank
  // By rank: keeps its own errors, scaled for the new world.
  std::vector<bool> keeps_errors;
  // Some of the errors that belong to the state are lost.
  bool lost_errors = false;
  // Why no rank goes on with a state that some have; a sentence.
  std::string warning;
};

// `mesh` has the ranks of the new generation; only hybrid sharding needs it.
HookRecoveryPlan PlanHookRecovery(const std::vector<HookFacts>& facts,
                                  const Mesh& mesh = {});

struct HookRecovery {
  HookRecoveryPlan plan;
  // This rank's, and the world that its errors are scaled for.
  const std::optional<HookState>* own = nullptr;
  int own_world = 0;
  int64_t max_bytes = 0;   // of a state that is copied
  absl::Duration timeout;  // of each collective
};

struct RecoveredHook {
  std::optional<HookState> state;  // unset: the hook begins anew
  double error_scale = 1;          // for Hook::LoadOwn
};

// Copies what a rank lacks. Survivors keep their own errors, scaled by W'/W;
// those of a newcomer are zero, and so are those of all ranks in a hook's
// mode=pytorch when the world changes: that mode's errors are only valid
// together. With hybrid sharding a rank that has another slice than before is a
// newcomer to it. Collective. Fails with the communicator's errors, and, after
// aborting it, with DATA_LOSS for bytes that are no state.
absl::StatusOr<RecoveredHook> RecoverHook(Communicator& communicator,
                                          const HookRecovery& recovery);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_HOOK_RECOVERY_H_
