#ifndef COXSWAIN_CLIENT_ELASTIC_REPLAY_PLAN_H_
#define COXSWAIN_CLIENT_ELASTIC_REPLAY_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/elastic/rank_facts.h"

// What the ranks of an elastic job do where they hold different bits of the
// same step, and no majority the same: all go back to the last step of which
// they are known to have held the same, and take the steps since then again.
// The rank whose bits are others then than they were was the one that was
// wrong. Here is what follows from what each rank has; replay.h keeps it.

namespace coxswain {

// Which state of the job: all ranks are to hold the same bits of it.
struct StateVersion {
  int64_t lineage = 0;
  int64_t trained = 0;
  int64_t progress = 0;
};
inline bool operator==(const StateVersion& a, const StateVersion& b) {
  return a.lineage == b.lineage && a.trained == b.trained &&
         a.progress == b.progress;
}

// A rank's bits of a state.
struct StateBits {
  int64_t tensors = 0;  // hash of its tensors
  int64_t digest = 0;   // ElasticState::Digest
};

// What a rank reports of a copy that it has kept of its state.
struct CopyFacts {
  int64_t intact = 0;     // 1: there is one, and no bit of it has changed
  int64_t confirmed = 0;  // 1: all ranks are known to have held the same
  StateVersion version;
  int64_t step = 0;
  int64_t tensors = 0;  // as StateBits
};

// What a rank reports once the ranks have found that they differ. Numbers only.
struct ReplayFacts {
  CopyFacts known;    // the last that was confirmed
  CopyFacts waiting;  // of the step that was compared when the generation ended
  int64_t replays = 0;  // in a row
  // What it has replayed: the state that the ranks had differed in, with the
  // bits that this rank had of it at first, and the generation in which it was
  // to be reached again by the same members; 0: none such.
  int64_t generation = 0;
  int64_t progress = 0;
  int64_t from_step = 0;
  StateBits had;
};

// Returns the facts of all ranks, by rank. Collective.
absl::StatusOr<std::vector<ReplayFacts>> ExchangeReplayFacts(
    Communicator& communicator, const ReplayFacts& own, absl::Duration timeout);

// What ranks differ in, to be found out by a replay.
struct ReplayDispute {
  int64_t progress = 0;  // of the state that they differ in
  int64_t step = 0;
  std::vector<int> ranks;      // that hold it
  std::vector<StateBits> had;  // by rank
  StateVersion from;           // that all go back to
  int64_t from_step = 0;
  int64_t replays = 0;     // in a row, with this one
  int64_t generation = 0;  // that it is replayed in
  // The members are those of the steps that are replayed: equal steps are to
  // give equal bits.
  bool comparable = false;
  // This rank's bits of the same progress, once it is reached again.
  std::optional<StateBits> now;
};

struct ReplayPlan {
  ReplayDispute dispute;
  std::vector<bool> goes_back;  // by rank: to its own copy
  // By rank: it has a state, and no copy of the other one, so it is to take
  // over that of a rank that has.
  std::vector<bool> drops;
  std::string warning;  // for display
};

// Returns the plan, the same on all ranks: all go back to the newest state of
// which all copies, of those that are intact, have the same bits. `facts` and
// `replays` are by rank, `disputed` is RanksInDispute of them.
//
// Fails with `otherwise` where no rank has such a copy; with DATA_LOSS where
// the same state has been replayed already, which has for each rank whether it
// had its former bits again, and where `max_replays` in a row have come to no
// agreement.
absl::StatusOr<ReplayPlan> PlanReplay(const std::vector<RankFacts>& facts,
                                      const std::vector<int>& disputed,
                                      const std::vector<ReplayFacts>& replays,
                                      int64_t max_replays,
                                      const absl::Status& otherwise);

// Returns the ranks that held other bits than all do now that the same progress
// is reached again; none, where all held others: the steps do not give the same
// bits twice. `now` is set.
std::vector<int> RanksThatWereWrong(const ReplayDispute& dispute);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_REPLAY_PLAN_H_
