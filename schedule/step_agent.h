#ifndef COXSWAIN_SCHEDULE_STEP_AGENT_H_
#define COXSWAIN_SCHEDULE_STEP_AGENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "schedule/step_gate.h"
#include "schedule/terms.h"

namespace coxswain::schedule {

// Runs a rank's side of the agreement on each exchange of one stream: a state
// machine without clock, locks or network, whose counterpart is the
// coordinator's StepAgreement. Used by AttachedSchedule, and by the simulation
// of tests/simulation.
//
//   idle --Announce--> announced --OnGrant--> granted (strict)
//     ^                    |
//     +--TakeDecision------+--OnDecision--> decided
//
// What it sends may be lost, repeated and reordered: it sends it again every
// `resend` until it is answered, and after each reconnect. Answers of
// other rounds than the present one are ignored.
class StepAgent {
 public:
  struct Options {
    std::string stream;
    Terms terms;  // of the plan in force
    // Whether its own decisions, where there is no coordinator to make them
    // (enforcement=off), ask for the checkpoints of the plan.
    bool checkpoints = true;
    // No wait for a grant or a decision is longer: it must outlast the
    // coordinator's progress_timeout, whose message names the ranks.
    absl::Duration timeout = absl::Minutes(6);
    absl::Duration resend = absl::Seconds(5);
  };

  // What is to be sent.
  using Outgoing = std::variant<Ticket, schedule::Vote>;

  explicit StepAgent(Options options);

  // Begins the next round. Fails with FAILED_PRECONDITION if the last one has
  // not been decided, or its decision was not taken, or ended the generation;
  // or, with enforcement=off, the ticket asks for a skip, which no other rank
  // would receive.
  absl::Status Announce(const Ticket& ticket, absl::Time now);
  // Asks all ranks, from the next ticket or vote on, to stop.
  void RequestStop(std::string reason);
  // Announces, from the next ticket on, that this rank leaves after its step.
  void RequestDrain(std::string reason);
  // Asks, from the next ticket on, for a checkpoint, until a decision asks
  // for it. The first reason counts.
  void RequestCheckpoint(std::string reason);
  // Follows the terms of another plan from now on; between rounds. Only needed
  // where it did not come with a decision of this stream.
  absl::Status Follow(const Terms& terms);
  // Votes on the round. Fails with FAILED_PRECONDITION outside of a round.
  absl::Status Vote(const schedule::Vote& vote, absl::Time now);

  void OnGrant(int64_t round);
  void OnDecision(const Decision& decision);
  // Sends again what was not answered, on a new connection.
  void OnConnected();
  // Restarts this rank's timeouts: another coordinator has taken over and
  // restarts its own.
  void OnOtherCoordinator(absl::Time now);
  // Returns the last decision of all ranks that was received, whether it was
  // taken or not: sent to a coordinator that may not know of it any more.
  std::optional<Decision> last_decision() const;

  // Returns what to send now, and notes that it was sent.
  std::vector<Outgoing> Take(absl::Time now);
  // Returns when Take has something again; InfiniteFuture: never.
  absl::Time due() const;
  // Returns when Take has something again, or a wait is over; InfiniteFuture:
  // never.
  absl::Time deadline() const;

  // Returns whether the exchange may begin.
  bool granted() const;
  bool announced() const { return ticket_.has_value(); }
  bool decided() const { return decision_.has_value(); }
  // Returns whether the wait that began with Announce or Vote has outlasted the
  // timeout.
  bool Expired(absl::Time now) const;
  // Returns the decision, which ends the round, and whose plan is in force from
  // now on. Only if decided().
  Decision TakeDecision();

  int64_t round() const { return round_; }  // the present one, or the next
  const Options& options() const { return options_; }

 private:
  // Something that is sent until it is answered. Its content is settled when
  // it is sent first: a repetition that differs would be a mismatch.
  template <typename Content>
  struct Repeated {
    Content content;
    absl::Time due;  // when to send it (again)
  };

  void Adopt(const Terms& terms);
  // With enforcement=off.
  Decision OwnDecision(const Ticket& ticket) const;

  Options options_;
  int64_t round_ = 0;
  std::string stop_;
  std::string drain_;
  std::string checkpoint_;
  std::string regroup_;  // of the last decision
  std::optional<Repeated<Ticket>> ticket_;
  std::optional<Repeated<schedule::Vote>> vote_;  // with commit_vote only
  bool voted_ = false;
  bool granted_ = false;
  absl::Time waiting_since_;
  std::optional<Decision> decision_;
  std::optional<Decision> taken_;  // the last one; not with enforcement=off
};

// Returns how long the gates of a job with this plan wait for a grant or a
// decision; ten times as long where a stall only causes a warning.
absl::Duration StepTimeoutOf(const Terms& terms);

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_STEP_AGENT_H_
