#ifndef COXSWAIN_CLIENT_ELASTIC_RANK_FACTS_H_
#define COXSWAIN_CLIENT_ELASTIC_RANK_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mesh.h"
#include "client/comm/communicator.h"
#include "client/elastic/hook_recovery.h"

namespace coxswain {

// What a rank reports of its state when a generation begins. Numbers only: they
// are exchanged in one all-reduce.
struct RankFacts {
  // The state is whole, and has been that of a generation before.
  int64_t has_state = 0;
  // Random: made where training began from nothing, and copied with the state.
  // States of different lineages have nothing in common. Without a state: the
  // lineage that it would have if training began with this rank.
  int64_t lineage = 0;
  // The last generation that this rank began to train in; 0: none.
  int64_t recovered = 0;
  // The generation in which the state's last step was committed, or that began
  // with it because ranks went back to it (replay_plan.h). Two states of a
  // lineage are the same if this and the progress are.
  int64_t trained = 0;
  int64_t progress = 0;
  int64_t step = 0;
  // Hash of the sizes and types of its tensors.
  int64_t layout = 0;
  // Hash of the tensors' bits; 0 without a state.
  int64_t tensors = 0;
  int64_t digest = 0;
  // Hash of ElasticState::LooseBytes; ranks may differ in it.
  int64_t loose = 0;
  // Of its hook: see HookFacts.
  int64_t hook_world = 0;
  int64_t hook_step = 0;
  int64_t hook_shared = 0;
  int64_t hook_slice = 0;
  int64_t hook_slices = 0;
  // The lineage of what it has taken of the members' state, as of `trained` and
  // `progress`, while it waited: see CatchUpTarget; 0: nothing. It has no state
  // of its own then, and counts for nothing but for what it has to copy itself.
  int64_t caught_up = 0;
};

// Returns the facts of all ranks, by rank. Collective.
absl::StatusOr<std::vector<RankFacts>> ExchangeFacts(Communicator& communicator,
                                                     const RankFacts& own,
                                                     absl::Duration timeout);

// Where no rank has a state, what ranks have taken of one while they waited is
// dropped: not all of it came that way. Each of these is to go back to what it
// had, and what begins with it is of a lineage of its own: those that have the
// state may only be away.
void DropCaughtUpAlone(std::vector<RankFacts>* facts);

// What follows from them, the same on all ranks.
struct RecoveryPlan {
  int source = 0;  // whose state all go on with
  bool copies_any = false;
  std::vector<bool> copies;   // by rank: takes over the source's
  std::vector<bool> damaged;  // by rank: most others contradict its bits
  // Has the source's state, but for the loose bytes, which it takes over.
  bool copies_any_loose = false;
  std::vector<bool> copies_loose;
  HookRecoveryPlan hook;
  // For display: the training that is lost.
  std::vector<std::string> warnings;
};

// Returns the plan. The source is the lowest of the ranks with the highest
// committed step. A rank that returns after others continued without it has
// trained in an earlier generation, and does not count, whatever its step.
//
// Where ranks hold different bits of this step and more than half of them the
// same, those are right: the source is the lowest of them, and the others,
// whose memory or arithmetic was wrong, copy its state, which is a warning that
// names them. Two ranks have no majority.
//
// If workers that could not find the others have begun again, the lineage with
// the greatest progress counts, whenever it was trained; dropping the others is
// a warning.
//
// Fails with FAILED_PRECONDITION, naming ranks whose tensors have other sizes
// than the source's; on ranks that are not at fault with ABORTED: they continue
// without the others. Fails with DATA_LOSS if ranks hold different bits of the
// same step without a majority, or no rank has a state although there was one.
// All else is the same on all ranks. `mesh` has the ranks; empty: the job has
// none.
absl::StatusOr<RecoveryPlan> PlanRecovery(const std::vector<RankFacts>& facts,
                                          int rank, const Mesh& mesh);

// Returns the ranks that have the state that all would go on with, where they
// hold different bits of it, and no majority the same. Empty: there is one.
std::vector<int> RanksInDispute(const std::vector<RankFacts>& facts);

// Fails with DATA_LOSS, naming the ranks whose bits are not those of the
// source, among those with `compared`.
absl::Status CheckSameBits(const std::vector<RankFacts>& facts, int source,
                           const std::vector<bool>& compared);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_RANK_FACTS_H_
