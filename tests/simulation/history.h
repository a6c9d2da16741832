#ifndef COXSWAIN_TESTS_SIMULATION_HISTORY_H_
#define COXSWAIN_TESTS_SIMULATION_HISTORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/mesh.h"
#include "schedule/plan.h"

namespace coxswain::simulation {

// What a rank does that it should not.
enum class Deviation {
  kNone,
  // One field of its ticket is not what it is on the others.
  kMicroBatches,
  kHook,
  kLayout,
  kDigest,
  kChecksum,
  kPlanVersion,
  kWeight,
  kEndOfData,
  // It does not take part.
  kSkipsExchange,  // goes on with the next step as if it had
  kSilent,         // for ever, before its ticket
  kNoVote,         // for ever, instead of its vote
  kLeaves,
  kHangsInExchange,  // for ever, after its ticket
  kIgnoresStop,
  // It speaks against the protocol.
  kTwoTickets,
  kFutureRound,
  // What the plan allows each rank, and no rank that computes the same
  // micro-batches does: on meshes only.
  kPipeline,
  kOtherWeight,
  kFewerMicroBatches,
};
// Those of every job.
inline constexpr int kDeviations =
    static_cast<int>(Deviation::kFutureRound) + 1;
const char* ToString(Deviation deviation);

struct Link {
  double loss = 0;
  double duplicates = 0;
  absl::Duration fastest = absl::Milliseconds(1);
  absl::Duration slowest = absl::Milliseconds(1);
  int reconnects = 0;  // of all ranks together
  absl::Duration longest_break;
};

// A change of the plan while the ranks train.
struct Proposal {
  absl::Duration after;  // the beginning
  int64_t at_step = schedule::Plan::kAtNextStep;
  int accumulation_steps = 1;
  bool other_hook = false;
  bool strict = false;
  bool commit_vote = false;
};

// The coordinator dies, and all that it has not written with it.
struct Crash {
  enum class When {
    kAnyTime,   // `after` the beginning
    kDecision,  // as the decision of `round` travels
    kNews,      // as one travels that brings a plan, a stop and the like
  };
  When when = When::kAnyTime;
  absl::Duration after;
  int64_t round = 0;
  absl::Duration down;
};

// The generation should end: for others to join, or because a rank drains.
struct Regroup {
  absl::Duration after;  // the beginning
  int drains = -1;       // rank, or none
};

// A request for a checkpoint, by an operator or a rank.
struct CheckpointRequest {
  absl::Duration after;  // the beginning
  int rank = -1;         // or none
};

// One generation of one job, before it runs: all that is not drawn on the way.
struct History {
  uint64_t seed = 0;
  int world_size = 2;
  Mesh mesh;  // empty: the job has none
  schedule::Plan plan;
  int steps = 10;         // of all ranks, with uneven_data=refuse
  int short_window = 0;   // micro-batches of the last of them; 0: as planned
  std::vector<int> data;  // else: micro-batches of each rank
  std::vector<Proposal> proposals;
  std::vector<Crash> crashes;
  absl::Duration slowest_return;  // of a rank after a restart
  absl::Duration slowest_write;   // that no call waits for
  std::vector<Regroup> regroups;
  std::vector<CheckpointRequest> checkpoints;
  Link link;
  absl::Duration resend;
  double skip_chance = 0;  // of each ticket, and of each vote
  int stops_requested = 0;
  absl::Duration slowest_step;
  double straggle_chance = 0;  // of a step that takes a third of the timeout

  Deviation deviation = Deviation::kNone;
  // Ascending; less than half of the ranks, and only one in a mesh.
  std::vector<int> deviants;
  int64_t deviation_round = 0;

  DataPlace DataPlaceOf(int rank) const {
    return coxswain::DataPlaceOf(mesh, rank, world_size);
  }
  // Returns which part of the model a rank has.
  int PartOf(int rank) const;
  // Returns how many ranks must announce the same as the deviants do in the
  // field in which those deviate.
  int AlikeWithDeviants() const;
  static History Random(uint64_t seed);
  std::string Describe() const;
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_HISTORY_H_
