#ifndef COXSWAIN_CLIENT_SCHEDULE_STEP_GATE_H_
#define COXSWAIN_CLIENT_SCHEDULE_STEP_GATE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/schedule/job_plan.h"
#include "client/schedule/step_report.h"

namespace coxswain {

// What a rank is about to exchange, as its coordinator is told. The fields are
// those of v1.Ticket; the gate counts the rounds.
struct StepTicket {
  int64_t step = 0;
  int micro = 0;
  int micro_batches = 1;
  int window = 1;
  double weight = 1;
  bool end_of_data = false;
  int64_t plan_version = 0;
  std::string hook;
  uint64_t layout = 0;
  uint64_t digest = 0;
  std::optional<uint64_t> checksum;
  std::string skip;  // why this rank asks all to skip the step

  // Whether the rank only takes part, without data of its own.
  bool without_data() const { return weight == 0 && micro_batches == 0; }
};

struct StepVote {
  bool commit = true;
  std::string reason;  // why not
};

// What all ranks do with the step.
struct StepDecision {
  bool commit = true;
  std::string reason;           // why it is skipped
  std::string stop;             // not empty: all stop after this step, and why
  std::optional<JobPlan> plan;  // in force from the next step on
  // Not empty: the generation ends after this step, and why; its members join
  // the next one.
  std::string regroup;
  // Not empty: all ranks copy what a checkpoint consists of after this step,
  // and save it, and why.
  std::string checkpoint;
};

// Where a reducer asks whether what it does is what all ranks do. Made by
// client/schedule for a session; tests have their own.
//
//   Announce, AwaitGrant, the exchange, Decide; then the next step.
//
// Threading: Announce is for the thread that trains, AwaitGrant and NoteBucket
// for the exchange thread, Decide for either of them, one after the other.
// Abort may come from any thread at any time.
class StepGate {
 public:
  virtual ~StepGate() = default;

  // Tells the coordinator of the exchange that begins. Does not wait.
  virtual absl::Status Announce(const StepTicket& ticket) = 0;
  // With enforcement=strict, waits until all ranks have announced the same;
  // otherwise returns at once.
  virtual absl::Status AwaitGrant() = 0;
  // Waits for what all ranks decided; the vote counts with commit_vote only,
  // but is always given. ABORTED names the ranks that did something else, or
  // nothing.
  virtual absl::StatusOr<StepDecision> Decide(const StepVote& vote) = 0;

  // In place of Announce and Decide, on the same threads, for a step in which
  // the ranks exchange nothing and decide nothing together: for reports.
  virtual void BeginLocal(const StepTicket& ticket) {
    static_cast<void>(ticket);
  }
  virtual void EndLocal() {}

  // The bucket that is being exchanged, for reports.
  virtual void NoteBucket(int bucket) { static_cast<void>(bucket); }

  // The exchange has ended on this rank, and Finish returns; for reports. On
  // the thread that trains.
  virtual void NoteExchange(const StepReport& report) {
    static_cast<void>(report);
  }

  // How long AwaitGrant, or a Decide of the exchange thread, may wait for other
  // ranks: the end of the exchange is waited for that much longer.
  virtual absl::Duration patience() const { return absl::ZeroDuration(); }

  // The reducer is broken: whoever waits in AwaitGrant or Decide, now or later,
  // gets this error. Returns at once. The first reason stays.
  virtual void Abort(const absl::Status& reason) { static_cast<void>(reason); }
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SCHEDULE_STEP_GATE_H_
