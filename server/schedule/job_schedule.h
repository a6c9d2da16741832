#ifndef COXSWAIN_SERVER_SCHEDULE_JOB_SCHEDULE_H_
#define COXSWAIN_SERVER_SCHEDULE_JOB_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "schedule/epoch.h"
#include "schedule/pipeline/explain.h"
#include "schedule/plan.h"
#include "schedule/stall.h"
#include "schedule/step_agreement.h"
#include "schedule/ticket.h"
#include "server/generation/fence.h"
#include "server/membership/membership.h"
#include "server/options/options.h"
#include "server/schedule/schedule_report.h"

namespace coxswain::server {

// Runs the schedule of one generation: an agreement for each stream, and the
// state of each rank. A part of the schedule registry, which passes it events
// and carries out the effects that it returns. No clock, no locks, no network.
class JobSchedule {
 public:
  // The last decision of a stream that a rank has received.
  struct Position {
    std::string stream;
    schedule::Decision decision;
  };
  // The effects of a call, to be carried out in this order.
  struct Effects {
    std::vector<Position> positions;     // new ones, for the log
    std::optional<schedule::Plan> plan;  // has come into force
    std::vector<schedule::Message> messages;
    absl::Status failure;  // not OK: the generation must end with it

    bool empty() const {
      return positions.empty() && !plan.has_value() && messages.empty() &&
             failure.ok();
    }
  };
  // Returns the plan that is in force from this step on, if that is another
  // one.
  using NextPlan = std::function<std::optional<schedule::Plan>(int64_t step)>;
  // Returns a member's name, beside its rank.
  using NameOf = std::function<std::string(int rank)>;
  // What it has of those around it.
  struct Asks {
    NextPlan next_plan;
    NameOf name_of;
    absl::Duration heartbeat_interval;  // of the members
  };
  // The generation's state as an earlier coordinator has left it.
  struct ResumedFrom {
    // The earlier coordinator's, which may be the same one.
    schedule::Epoch epoch;
    // A pending RequestCheckpoint, and how many steps were known then.
    std::string checkpoint;
    int64_t newest_step = 0;
    std::vector<int> left;
    // The plan before the one in force, which the ranks may not have received.
    std::optional<schedule::Plan> plan_before;
    std::vector<Position> positions;
  };

  JobSchedule(const ScheduleLimits& limits, const GenerationBegin& begin,
              absl::Time now, Asks asks);
  // Goes on; right after the constructor.
  void Resume(const ResumedFrom& from, absl::Time now);

  // INVALID_ARGUMENT: no name of a stream; RESOURCE_EXHAUSTED: one too many.
  absl::Status OnTicket(int rank, absl::string_view stream,
                        const schedule::Ticket& ticket, absl::Time now,
                        Effects* effects);
  absl::Status OnVote(int rank, absl::string_view stream,
                      const schedule::Vote& vote, absl::Time now,
                      Effects* effects);
  // Whether one rank can have these last decisions, one of each stream: then
  // OnPosition() takes all of them.
  absl::Status CheckPositions(const std::vector<Position>& positions) const;
  absl::Status OnPosition(int rank, absl::string_view stream,
                          const schedule::Decision& last, absl::Time now,
                          Effects* effects);
  // Makes the next decision that ends a step of "train" one to regroup; none
  // for an empty reason.
  void OnRegroupWanted(absl::string_view reason);
  // Puts these on the next decisions of "train" that end a step, a few on each.
  void OnCatchUpWanted(const std::vector<schedule::Newcomer>& newcomers);
  // Makes one of the next decisions of "train" ask for a checkpoint.
  //   FAILED_PRECONDITION  it is over, or the plan has enforcement=off
  absl::Status OnCheckpointWanted(absl::string_view reason);
  // Returns how many steps of "train" are known to have been decided.
  int64_t newest_step() const { return newest_step_; }
  void OnMemberLeft(int rank, absl::Time now, Effects* effects);
  // Checks all deadlines, and for a stall; not while a member is detached, nor
  // before it has had time to send again. `members` as Membership::MembersOf
  // gives them. To be called from next_look() on; InfiniteFuture: not yet.
  void Tick(const std::vector<MemberDescription>& members, absl::Time now,
            Effects* effects);
  absl::Time next_look() const;
  // Tick was not called for so long: contacts in the meantime are not known.
  void NotePause(absl::Duration how_long, absl::Time now);

  // Freezes what Report returns, and frees the rest.
  void End(const std::vector<MemberDescription>& members,
           const absl::Status& reason, absl::Time now);
  bool ended() const { return end_.has_value(); }
  // It has ended, or it has failed and is about to be ended.
  bool over() const { return ended() || !failure_.ok(); }
  // Returns the ranks that have left; below, the last reason of
  // OnRegroupWanted.
  std::vector<int> Left() const;
  const std::string& regroup_wanted() const { return regroup_; }
  // Returns the last reason of OnCheckpointWanted, until a decision has it.
  const std::string& checkpoint_wanted() const { return checkpoint_; }
  ScheduleReport Report(const std::vector<MemberDescription>& members,
                        absl::Time now) const;
  // Returns nothing where no rank is waited for, or not for long.
  std::optional<RankWait> WaitOf(const std::vector<MemberDescription>& members,
                                 absl::Time now) const;

  // Returns nothing where the plan has no pipeline, or it is over.
  std::optional<PipelineReport> PipelineOf(
      const std::vector<MemberDescription>& members) const;

  // Returns the last contact of each rank; see Membership::NoteSigns. Empty if
  // there was none since the last call.
  std::vector<absl::Time> TakeSigns();

  const std::string& job() const { return begin_.job; }
  Generation generation() const { return begin_.generation; }

 private:
  struct Stream {
    std::string name;
    schedule::StepAgreement agreement;
    std::vector<int64_t> voted;  // by rank: the round of its last vote
    // Its last decision was to stop or to regroup, or was on its last step.
    bool stopped = false;
  };
  struct Rank {
    bool left = false;
    bool absent = false;             // has not come back since the restart
    absl::Time last_contact;         // its last ticket or vote
    absl::Time progressed;           // the last that was no repetition
    const Stream* stream = nullptr;  // of its last ticket
  };

  // In force.
  const schedule::Plan& plan() const {
    return changes_.empty() ? first_plan_ : changes_.back();
  }
  absl::StatusOr<Stream*> FindOrAddStream(absl::string_view name,
                                          absl::Time now, Effects* effects);
  absl::Status CheckStreamCount(size_t count) const;
  schedule::StepAgreement::Options OptionsOf(absl::string_view stream) const;
  std::vector<int> Absent() const;
  void NoteBack(int rank, absl::Time now);
  // Returns whether a member that is awaited is not attached.
  bool NoteAttached(const std::vector<MemberDescription>& members,
                    absl::Time now);
  void RestartTimeouts(absl::Time now);
  void LookAgainSoon(absl::Time now);
  void NoteSign(int rank, bool is_new, absl::Time now);
  void Apply(schedule::StepAgreement::Messages messages, absl::Time now,
             Stream* stream, Effects* effects);
  bool IsLastStep(const Stream& stream,
                  const schedule::Decision& decision) const;
  void NoteDecision(const schedule::Decision& decision, Stream* stream,
                    Effects* effects);
  // Where the stream is after it; also if it was made before a restart.
  void NotePosition(const schedule::Decision& decision, Stream* stream,
                    Effects* effects);
  void NotePlan(const schedule::Plan& plan, const Stream& stream,
                Effects* effects);
  void RequestCatchUp(Stream* train);
  void Fail(const absl::Status& status, Effects* effects);
  void LookForStall(const std::vector<MemberDescription>& members,
                    absl::Time now, Effects* effects);
  // The result refers to `members`.
  schedule::StallInput InputOf(const std::vector<MemberDescription>& members,
                               absl::Time now) const;
  // Null where the plan has no pipeline.
  pipeline::SchedulesOfJob* Schedules() const;
  std::optional<pipeline::Explanation> Explain(
      const std::vector<MemberDescription>& members) const;
  std::string ResumedText() const;
  schedule::RankActivity ActivityOf(size_t rank,
                                    const MemberDescription* member,
                                    absl::Time now) const;

  const ScheduleLimits limits_;
  const GenerationBegin begin_;
  const Asks asks_;
  // The plan that it began with, or that was resumed with, and its changes
  // since.
  schedule::Plan first_plan_;
  std::deque<schedule::Plan> changes_;
  std::optional<ResumedFrom> resumed_;
  std::string regroup_;     // is wanted
  std::string checkpoint_;  // likewise
  // That no decision has named yet.
  std::vector<schedule::Newcomer> catch_up_;
  // At the last Tick, a member was not attached.
  bool away_ = false;
  int64_t newest_step_ = 0;
  std::map<std::string, Stream, std::less<>> streams_;
  std::vector<Rank> ranks_;
  std::deque<RoundReport> history_;  // the newest first
  bool received_ = false;            // since TakeSigns
  absl::Time restarted_;             // all timeouts have begun anew then
  absl::Time next_look_;
  absl::Time warned_;  // the last time, of a stall
  absl::Status failure_;
  std::optional<ScheduleReport> end_;
  // Made when they are asked for.
  mutable std::optional<pipeline::SchedulesOfJob> schedules_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_SCHEDULE_JOB_SCHEDULE_H_
