#ifndef COXSWAIN_CLIENT_SCHEDULE_STEP_AGENT_H_
#define COXSWAIN_CLIENT_SCHEDULE_STEP_AGENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/schedule_terms.h"
#include "client/schedule/step_gate.h"

namespace coxswain {

// A rank's end of the agreement on each exchange of one stream: a state
// machine without clock, locks or network, whose other end is the coordinator's
// StepAgreement. Used by ScheduleClient, and by the simulation of
// tests/simulation.
//
//   idle --Announce--> announced --OnGrant--> granted (strict)
//     ^                    |
//     +--TakeDecision------+--OnDecision--> decided
//
// What it wants said may be lost, repeated and reordered: it says it again
// every `resend` until it is answered, and after each reconnect. Answers of
// other rounds than the present one are ignored.
class StepAgent {
 public:
  struct Options {
    std::string stream;
    Enforcement enforcement = Enforcement::kAudit;
    bool commit_vote = false;
    // Where there is no coordinator to say so (enforcement=off), the decision
    // of every so many-th step asks for a checkpoint.
    bool checkpoints = true;
    int64_t checkpoint_every = 0;
    bool sync_each_batch = false;
    // No wait for a grant or a decision is longer: it must outlast the
    // coordinator's progress_timeout, whose message names the ranks.
    absl::Duration patience = absl::Minutes(6);
    absl::Duration resend = absl::Seconds(5);
  };

  // What is to be sent: one of them is set.
  struct Outgoing {
    int64_t round = 0;
    std::optional<StepTicket> ticket;
    std::optional<StepVote> vote;
    std::string stop;
    std::string drain;
    std::string checkpoint;
  };

  // A decision that came.
  struct Heard {
    int64_t round = 0;
    StepDecision decision;
  };

  explicit StepAgent(Options options);

  // Begins the next round. FAILED_PRECONDITION if the last one has not been
  // decided, or its decision was not taken, or said that the generation ends
  // with it; or the ticket asks for a skip that nobody would hear of, with
  // enforcement=off.
  absl::Status Announce(const StepTicket& ticket, absl::Time now);
  // Says, from the next ticket or vote on, that all shall stop.
  void RequestStop(std::string reason);
  // Says, from the next ticket on, that this rank leaves after its step.
  void RequestDrain(std::string reason);
  // Asks, from the next ticket on, for a checkpoint, until a decision has said
  // so. The first reason counts.
  void RequestCheckpoint(std::string reason);
  // Between rounds: the terms of another plan count from now on. Only needed
  // where it did not come with a decision of this stream.
  absl::Status Follow(const ScheduleTerms& terms);
  // This rank's vote on the round. FAILED_PRECONDITION outside of a round.
  absl::Status Vote(const StepVote& vote, absl::Time now);

  void OnGrant(int64_t round);
  void OnDecision(int64_t round, const StepDecision& decision);
  // The connection is new: what was not answered is said again.
  void OnConnected();
  // The coordinator is another one, which waits anew: so does this end.
  void OnOtherCoordinator(absl::Time now);
  // The last decision of all ranks that came, whether it was taken or not: what
  // a coordinator is told that may not know of it any more.
  std::optional<Heard> heard() const;

  // What to send now, and notes that it was sent.
  std::vector<Outgoing> Take(absl::Time now);
  // When Take has something again; InfiniteFuture: never.
  absl::Time due() const;
  // When Take has something again, or a wait is over; InfiniteFuture: never.
  absl::Time deadline() const;

  // Whether the exchange may begin.
  bool granted() const;
  bool announced() const { return ticket_.has_value(); }
  bool decided() const { return decision_.has_value(); }
  // Whether the wait that began with Announce or Vote has outlasted the
  // patience.
  bool Expired(absl::Time now) const;
  // The decision, which ends the round, and whose plan counts from now on.
  // Only if decided().
  StepDecision TakeDecision();

  int64_t round() const { return round_; }  // the present one, or the next
  const Options& options() const { return options_; }

 private:
  // Something that is said until it is answered. What it says is settled when
  // it is said first: a repetition that differs would be a mismatch.
  template <typename Content>
  struct Saying {
    Content content;
    std::string stop;
    std::string drain;
    std::string checkpoint;
    absl::Time due;  // when to say it (again)
  };

  void Adopt(const ScheduleTerms& terms);
  // With enforcement=off.
  StepDecision OwnDecision(const StepTicket& ticket) const;

  Options options_;
  int64_t round_ = 0;
  std::string stop_;
  std::string drain_;
  std::string checkpoint_;
  std::string regroup_;  // as the last decision said
  std::optional<Saying<StepTicket>> ticket_;
  std::optional<Saying<StepVote>> vote_;  // with commit_vote only
  bool voted_ = false;
  bool granted_ = false;
  absl::Time waiting_since_;
  std::optional<StepDecision> decision_;
  std::optional<Heard> taken_;  // the last one; not with enforcement=off
};

// How long the gates of a job with this plan wait for a grant or a decision.
// Where a stall is only warned of, ten times as long.
absl::Duration PatienceOf(const ScheduleTerms& terms);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SCHEDULE_STEP_AGENT_H_
