#ifndef COXSWAIN_SCHEDULE_TICKET_H_
#define COXSWAIN_SCHEDULE_TICKET_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "schedule/plan.h"

namespace coxswain::schedule {

// What one rank announces of each exchange, and the answer to all of them: the
// structs of v1.Ticket, v1.Vote and v1.Decision, used by the worker, the
// coordinator and the fallback coordinator. schedule_wire.h puts them into
// messages. Values: copied, and each used by one thread at a time.

// The stream of a program's training loop: the one whose decisions carry
// changes of the plan, regroups and checkpoints.
inline constexpr char kTrainStream[] = "train";

// Of a stream's name.
inline constexpr size_t kMaxStreamBytes = 64;

// What a rank is about to exchange. A worker's program fills all but the round
// and what follows `skip`, which its StepAgent adds.
struct Ticket {
  int64_t round = 0;
  int64_t step = 0;       // the accumulator's window
  int micro = 0;          // place in the window of the micro-batch, from 0
  int micro_batches = 1;  // summed up in this exchange; 0: out of data
  int window = 1;         // micro-batches that were planned
  double weight = 1;
  // The end of the data has cut this window short, which ends with this one.
  bool end_of_data = false;
  int64_t plan_version = 0;
  std::string hook;     // its spec
  uint64_t layout = 0;  // hash of the bucket layout
  // Hash of what was exchanged so far: shapes and orders, and norms where they
  // are measured.
  uint64_t digest = 0;
  std::optional<uint64_t> checksum;  // of the parameters, before this step
  // Of those parameters among them that all ranks along tp have whole.
  std::optional<uint64_t> replicated_checksum;
  // Hash of the pipeline's schedule that the rank runs in this window; 0: its
  // job has no pipeline.
  uint64_t pipeline = 0;
  // Not empty: this rank asks, and why, that all skip the step; ...
  std::string skip;
  std::string stop;        // ... stop after it; ...
  std::string drain;       // ... go on without this rank after it; ...
  std::string checkpoint;  // ... save their state after it.

  // Returns whether the rank only takes part, without data of its own.
  bool without_data() const { return weight == 0 && micro_batches == 0; }
};

// What a rank, or all of them together, has of a step's averages: sums over the
// elements that no other rank counts.
struct GradientSums {
  double sum_of_squares = 0;
  int64_t non_finite = 0;  // elements that are infinite or not a number
};

// With commit_vote: after the exchange, before the optimizer step. A program
// fills `commit` and `reason`, its StepAgent the rest.
struct Vote {
  int64_t round = 0;
  bool commit = true;
  std::string reason;                // why not
  std::string stop;                  // as in Ticket
  std::optional<GradientSums> sums;  // to be summed up by the decision
};

// A worker that waits for the next generation, and takes the members' state
// meanwhile.
struct Newcomer {
  std::string address;  // host:port
  uint64_t secret = 0;
  uint64_t incarnation = 0;
};

// Of a decision.
inline constexpr size_t kMaxNewcomers = 4;

// What all ranks do with one round.
struct Decision {
  int64_t round = 0;
  bool commit = true;
  std::string reason;  // why it is skipped: which ranks asked for it, and why
  std::string stop;    // not empty: all stop after this step, and why
  std::optional<Plan> plan;  // in force from the next step on
  // Not empty: the generation ends after this step, and why; its members join
  // the next one.
  std::string regroup;
  // Not empty: all ranks copy what a checkpoint consists of after this step,
  // and save it, and why.
  std::string checkpoint;
  // The votes' sums, added in the order of ranks. Unset where a vote has none,
  // and from a coordinator of a version that does not sum up.
  std::optional<GradientSums> sums;
  // To which all ranks send their state, beginning with that after this step.
  std::vector<Newcomer> newcomers;

  // What follows is known where the decision was made, and is not sent.
  int64_t step = 0;
  // No rank had data: the step does not count, the next round has it again.
  bool without_data = false;
  // Of the round after it; unset: not known any more.
  std::optional<int64_t> next_step;
  // For the history.
  absl::Time decided;
  absl::Duration tickets_took;  // from the first to the last
  int last_rank = 0;            // whose ticket came last
  int64_t plan_version = 0;     // the tickets'
};

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_TICKET_H_
