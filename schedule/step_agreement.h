#ifndef COXSWAIN_SCHEDULE_STEP_AGREEMENT_H_
#define COXSWAIN_SCHEDULE_STEP_AGREEMENT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mesh.h"
#include "schedule/epoch.h"
#include "schedule/plan.h"
#include "schedule/rank_classes.h"
#include "schedule/terms.h"
#include "schedule/ticket.h"
#include "schedule/ticket_diff.h"

namespace coxswain::schedule {

// A message to one rank, or to all of them.
struct Message {
  // kLearned is for no rank: the round was decided before the restart.
  enum class Kind { kGrant, kDecision, kWarning, kLearned };
  static constexpr int kAllRanks = -1;
  Kind kind = Kind::kGrant;
  int rank = kAllRanks;
  int64_t round = 0;
  Decision decision;  // kDecision, kLearned
  std::string text;   // kWarning
  // Set by the owner of the agreement, which has several.
  std::string stream;
  Epoch epoch;
};

// Checks that the ranks of one generation do the same in each exchange of one
// stream, and decides the step: a state machine without clock, locks or
// network. Used by the schedule registry, and by the simulation of
// tests/simulation.
//
// Rules, which the simulation checks:
//   - A round is granted (strict only) and decided once, in order, and only
//     when the tickets of all ranks have been received and agree (and with
//     commit_vote all votes). A rank that repeats a ticket or a vote is
//     answered again, with the same decision: the last kRemembered of them are
//     kept. A rank sends the ticket of a round only after it has received the
//     decision of the round before, so that is enough.
//   - A mismatch, a ticket or a vote that cannot be (a round that is not the
//     next one, another content under a number that was used), a rank that has
//     left while others go on, and with on_stall=abort a rank whose ticket or
//     vote does not come within progress_timeout of the first: the agreement
//     fails, once, with an error that names the ranks and shows the difference.
//     It waits for the tickets of all ranks, but at most kSettle, to find the
//     outlier. After that nothing is granted or decided.
//   - A decision is to skip if any ticket or vote asked for it, and to stop
//     likewise. One that ends a window may carry a plan, by which the next
//     round is checked; or be to regroup, if a ticket drains or RequestRegroup
//     was called: then it is the last one. One of them that commits is to save
//     a checkpoint every checkpoint_every-th step, if a ticket asks for it, or
//     if RequestCheckpoint was called.
//   - A decision is a function of the tickets and votes, of the plan that comes
//     next and of RequestRegroup. A decision that any rank has received is not
//     made again, also not by the agreement of a coordinator that was
//     restarted: see Options::resumed.
//
// After a restart, the ranks are its memory. Each first reports the last
// decision that it has received (OnPosition), then repeats its tickets and
// votes. No rank can be more than one round ahead of another, so the highest
// decision that is known, from a rank or from what was kept (Restore), is the
// last one; ranks that are behind are answered with it, and one that no rank
// has received is made again, from the same tickets. A ticket or vote on a
// later round is held until its rank has reported its position. Timeouts begin
// when all ranks have attached again.
//
// Which fields must be equal: step, plan_version, hook, and with
// sync_each_batch micro and window; among ranks that hold the same part of the
// model (all of them, without pp and tp), layout, digest and checksum (also
// whether there is one); among ranks that have the same layers, all of them or
// some elements of each, replicated_checksum; among ranks that compute the same
// micro-batches,
// micro_batches, window, end_of_data, weight and pipeline. micro_batches must
// be the rank's window of the plan (with sync_each_batch 1), or, where the data
// has ended (end_of_data), at most that; with windows=program any number above
// 0 that all have in common. With uneven_data=refuse all ranks' data ends
// together. A rank with micro_batches 0 is out of data: weight 0. The outliers
// are those that differ from the majority of those that must be equal; where
// there is none, from the plan, from the step that comes next, and from the
// schedule that most other ranks run; else all of them.
class StepAgreement {
 public:
  static constexpr int kRemembered = 2;

  struct Options {
    std::string stream;  // for messages
    int world_size = 0;
    Plan plan;
    // The plan that is in force from this step on, if that is another one.
    // Asked once for each decision; may be null.
    std::function<std::optional<Plan>(int64_t step)> next_plan;
    // Whether its decisions may ask for checkpoints.
    bool checkpoints = true;
    // The name of a rank in messages, beside its number; may be null.
    std::function<std::string(int rank)> name_of;
    // Which ranks must announce the same, and where the ranks of an error are,
    // beside their numbers; empty: the job has no mesh. Has world_size ranks.
    Mesh mesh;

    // An earlier coordinator has led it up to here.
    bool resumed = false;
    // Ranks that have not attached since.
    std::vector<int> absent;
    // A plan that the earlier coordinator may have sent to the ranks, to come
    // into force after `plan`. The tickets show whether it did.
    std::optional<Plan> undelivered;
    // Whether a rank may have received a plan that is not known here: in a
    // fallback schedule, which knows what one rank has received.
    bool plans_from_positions = false;
  };

  using Message = schedule::Message;
  using Messages = std::vector<Message>;

  explicit StepAgreement(Options options);

  // Each returns the messages to send now; none once failure() is set.
  Messages OnTicket(int rank, const Ticket& ticket, absl::Time now);
  Messages OnVote(int rank, const Vote& vote, absl::Time now);
  Messages OnMemberLeft(int rank, absl::Time now);
  Messages Tick(absl::Time now);

  // Takes the last decision that this rank has received. Does nothing where it
  // was made here.
  Messages OnPosition(int rank, const Decision& last, absl::Time now);
  // Takes the last decision that was kept; before everything else.
  void Restore(const Decision& last);
  // Notes that one of Options::absent has attached again.
  void OnBack(int rank, absl::Time now);
  // Restarts all timeouts: nothing could be received from any rank until `now`.
  void RestartTimeouts(absl::Time now) { all_back_ = std::max(all_back_, now); }

  // Makes the next decision that ends a window one to regroup, unless it is to
  // stop or on the plan's last step. The last reason counts; an empty one
  // withdraws the request.
  void RequestRegroup(absl::string_view reason);

  // Makes the next decision that may do so ask for a checkpoint. The last
  // reason counts until then.
  void RequestCheckpoint(absl::string_view reason);

  // Puts these on the next decision that ends a window and commits, unless it
  // is the last one; once.
  void RequestCatchUp(std::vector<Newcomer> newcomers) {
    newcomers_ = std::move(newcomers);
  }

  // Notes that another stream's decision has changed the plan: this one's
  // tickets may follow it from now on, all of a round together.
  void NotePlan(const Plan& plan);

  // Returns when Tick has something to do; InfiniteFuture: never.
  absl::Time deadline() const;

  // Returns OK, or why the generation must end: ABORTED, with ScheduleMismatch
  // as its ErrorDetail.
  const absl::Status& failure() const { return failure_; }

  // For reports. A rank's last ticket, and when it came.
  struct LastTicket {
    Ticket ticket;
    absl::Time at;
    bool decided = false;
    // Only its round is known, from the decision that the rank has received.
    bool inferred = false;
  };
  const std::vector<std::optional<LastTicket>>& last_tickets() const {
    return last_tickets_;
  }
  // Returns the round whose tickets are awaited, or which is being voted on.
  int64_t round() const { return round_; }
  // Returns the ranks whose ticket or vote the others wait for; empty if none
  // waits.
  std::vector<int> Missing() const;
  // Returns since when they wait; InfiniteFuture: none does.
  absl::Time waiting_since() const;
  // The same, but no earlier than all could have answered after a restart.
  absl::Time timeout_start() const;
  // Returns whether votes are awaited, not tickets.
  bool voting() const;
  const Plan& plan() const { return options_.plan; }
  // Returns whether the last decision was to regroup.
  bool regrouped() const { return !regrouped_.empty(); }

 private:
  static constexpr size_t kMaxNotedPlans = 8;
  // How long a failure waits for the tickets of the other ranks, so that it can
  // find the outlier.
  static constexpr absl::Duration kSettle = absl::Seconds(1);

  struct Decided {
    Decision decision;
    bool granted = false;
  };
  // Received before the rank's position.
  struct Pending {
    std::optional<Ticket> ticket;
    std::optional<Vote> vote;
  };
  // The round whose tickets and votes come in.
  struct Round {
    int tickets = 0;
    int votes = 0;
    int first_rank = 0;
    int last_rank = 0;
    absl::Time first_ticket = absl::InfiniteFuture();
    absl::Time last_ticket;
    absl::Time first_vote = absl::InfiniteFuture();
    absl::Time trouble = absl::InfiniteFuture();  // the ranks do not agree
    bool granted = false;
    bool warned = false;
    bool adopted_plan = false;
    // By class, the rank whose ticket came first, or -1; empty before the first
    // ticket, and where the classes are all ranks, or one each.
    std::vector<int> first_of_data;
    std::vector<int> first_of_part;
  };

  bool HasTicket(int rank) const;
  bool HasVote(int rank) const;
  bool strict() const;
  TicketRules Rules() const;

  void Accept(int rank, Ticket ticket, absl::Time now);
  // Returns the ranks that the ticket of this one is compared with: the first
  // of each of its classes.
  std::vector<int> FirstsFor(int rank);
  void AdoptPlan(int64_t version);
  // Answers a ticket of a round before the present one, or of this one once
  // more.
  void AnswerTicket(int rank, const Ticket& ticket, absl::Time now,
                    Messages* messages);
  void AnswerDecided(int rank, int64_t round, Messages* messages) const;

  // Takes all steps that are possible now.
  void Advance(absl::Time now, Messages* messages);
  void Decide(absl::Time now, Messages* messages);
  Decision MakeDecision(absl::Time now) const;
  // What a decision asks for beside commit or skip.
  std::optional<GradientSums> SumsOfVotes() const;
  std::string RegroupText(const Decision& decision) const;
  std::string CheckpointText(const Decision& decision) const;
  // Returns what ranks ask for in this field of their tickets, each with its
  // rank.
  std::vector<std::string> Asked(std::string Ticket::*field,
                                 absl::string_view what) const;
  std::optional<Plan> PlanAfter(const Decision& decision) const;
  bool EndsWindow(const Ticket& ticket) const;
  bool WithoutData() const;
  bool LeaversMissing() const;
  bool AllTicketsReceived() const;
  void CheckStall(absl::Time now, Messages* messages);
  // InfiniteFuture while any of Options::absent is.
  absl::Time all_back() const {
    return absent_count_ > 0 ? absl::InfiniteFuture() : all_back_;
  }

  // Takes over a decision that was made elsewhere.
  void Learn(Decision decision);
  // Returns whether this coordinator may know less of the round than the rank.
  bool AwaitsPosition(int rank) const;
  void NoteReceived(int rank, int64_t round, absl::Time now);
  void AnswerAllOf(int64_t round, Messages* messages) const;
  void ReleasePending(absl::Time now, Messages* messages);
  // Returns whether it differs from the decision on a round decided here.
  bool Contradicts(const Decision& reported) const;
  std::optional<Plan> KnownPlan(int64_t version) const;

  void FailRound();
  void AddLeavers(const std::vector<int>& leavers,
                  const std::vector<int>& present, TicketDiff* diff) const;
  void FailRank(int rank, absl::string_view what,
                absl::string_view look_for =
                    "two sessions or threads that share one stream");
  void Fail(const TicketDiff& diff);
  std::string Sentence(const TicketDiff& diff) const;
  // " (rank 1 is dp 1, shard 0)", or nothing without a mesh.
  std::string PlacesOf(const std::vector<int>& ranks) const;
  std::string MissingText(const std::vector<int>& missing,
                          absl::Time now) const;
  std::string LastTickets(const std::vector<int>& ranks) const;
  int64_t step() const;  // of the present round

  Options options_;
  const RankClasses classes_;
  std::deque<Plan> noted_plans_;
  absl::Status failure_;
  int64_t round_ = 0;
  Round now_;
  std::vector<std::optional<LastTicket>> last_tickets_;
  std::vector<std::optional<Vote>> last_votes_;
  std::vector<bool> left_;
  bool any_left_ = false;
  bool stopped_ = false;              // the last decision was to stop
  std::string regrouped_;             // likewise
  std::string regroup_;               // is to be decided
  std::string checkpoint_;            // likewise, once
  std::vector<Newcomer> newcomers_;   // likewise
  std::optional<int64_t> next_step_;  // none before the first decision
  std::deque<Decided> decided_;

  // Where it was resumed; by rank.
  std::vector<bool> absent_;
  int absent_count_ = 0;
  absl::Time all_back_ = absl::InfinitePast();
  std::vector<bool> positioned_;
  std::map<int, Pending> pending_;
};

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_STEP_AGREEMENT_H_
