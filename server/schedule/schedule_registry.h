#ifndef COXSWAIN_SERVER_SCHEDULE_SCHEDULE_REGISTRY_H_
#define COXSWAIN_SERVER_SCHEDULE_SCHEDULE_REGISTRY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "schedule/epoch.h"
#include "schedule/plan.h"
#include "schedule/ticket.h"
#include "server/generation/fence.h"
#include "server/membership/membership.h"
#include "server/plan/plan_store.h"
#include "server/schedule/job_schedule.h"
#include "server/schedule/schedule_outbox.h"
#include "server/schedule/schedule_report.h"
#include "server/state/state_writer.h"

namespace coxswain::server {

// Why a job is where it is.
struct WhyReport {
  std::string state;  // of the job, as membership calls it
  Generation generation;
  std::string last_event;
  absl::Time last_event_at;  // the infinite past: not known
  absl::Duration last_event_age;
  std::string forming;  // what the next generation waits for
  // Of that generation. Where this coordinator has not seen it: why it ended,
  // and what is known of its members.
  ScheduleReport schedule;
  absl::Duration ended;  // since it ended; 0: it goes on, or it is not known
};

// Enforces every job's plan: passes tickets and votes to the schedule of their
// generation, sends the decisions to the members, ends the generation where the
// ranks do not agree, and brings a proposed plan into force with a decision.
// Keeps the schedule of a job's last generation after its end, for Why().
//
// The ranks are its log: they report again what a crash loses, see
// StepAgreement. Before a rank leaves, the last decision that it received is
// persisted, because that rank may hold the only copy. A decision that no rank
// may have received is not persisted: after a crash, or while no rank reaches
// this coordinator, it may be made otherwise, also by the fallback coordinator.
// A decision to regroup is persisted by the membership before it is sent, and
// revoked where the ranks have gone on.
//
// Epochs (schedule::Epoch): a generation is in one, and each attachment sends
// in the one that it was given as it attached, or has reported since. What is
// sent in an earlier one than the generation's does not count. A report of a
// fallback epoch that is new begins the generation's schedule anew, as after a
// restart, and the other ranks are disconnected, so that they attach again and
// send their positions.
//
// Life-cycle: registered as an observer of the membership; then requests and
// Tick() from any thread. Thread-safe. What is sent to one generation is sent
// in the order in which it was agreed, whichever threads brought the tickets:
// it goes through an outbox that one thread at a time empties, without any lock
// held, and no thread for ever.
class ScheduleRegistry : public GenerationObserver {
 public:
  // Components that it uses; all must outlive it.
  struct Dependencies {
    const Clock* clock = nullptr;
    Membership* membership = nullptr;
    PlanStore* plans = nullptr;
    StateWriter* state = nullptr;
  };

  ScheduleRegistry(const ScheduleLimits& limits, const Dependencies& deps)
      : limits_(limits), deps_(deps) {}

  // The rank has been attached. Returns the epoch that it sends in, which is
  // its generation's; to be called before anything that it has sent.
  schedule::Epoch OnAttached(const AttachedRank& attached);

  // From an attached rank. Ignored if its generation has ended, if the rank has
  // attached again since, and in an earlier epoch than the generation's.
  //   INVALID_ARGUMENT    not a name of a stream
  //   RESOURCE_EXHAUSTED  max_streams
  absl::Status OnTicket(const AttachedRank& attached, absl::string_view stream,
                        const schedule::Ticket& ticket);
  absl::Status OnVote(const AttachedRank& attached, absl::string_view stream,
                      const schedule::Vote& vote);
  // The last decision of a stream that this rank has received; see v1.Position.
  absl::Status OnPosition(const AttachedRank& attached,
                          absl::string_view stream,
                          const schedule::Decision& last);

  // Asks that a running job's ranks save their state after one of their next
  // steps; returns the number of steps that are known to have been decided. A
  // restart of the coordinator before the decision loses the request.
  //   NOT_FOUND            no such job
  //   FAILED_PRECONDITION  it does not run, or has enforcement=off
  absl::StatusOr<int64_t> RequestCheckpoint(absl::string_view job,
                                            absl::string_view reason);

  // The rank knows of this fallback epoch of its generation. Before its
  // positions. INVALID_ARGUMENT: no epoch has this number.
  absl::Status OnFallbackReport(const AttachedRank& attached,
                                int64_t fallback_epoch);

  // A member is about to leave, having received these decisions last, one of
  // each stream, and knowing of this fallback epoch (0: none). To be called
  // before Membership::Leave, for one that passes the fence. Errors as
  // OnPosition; also INVALID_ARGUMENT for an epoch that cannot be, and for two
  // positions of one stream. After an error nothing has changed.
  struct FinalState {
    int rank = 0;
    int64_t fallback_epoch = 0;
    std::vector<JobSchedule::Position> positions;
  };
  absl::Status OnLeaving(absl::string_view job, Generation generation,
                         const FinalState& state);

  // Checks all deadlines, and for stalls; and reports to the membership which
  // ranks' tickets have come. To be called before Membership::Tick().
  void Tick(absl::Time now);

  // NOT_FOUND: no such job.
  absl::StatusOr<WhyReport> Why(absl::string_view job) const;
  // Returns what the ranks of a job wait for, as membership has described it;
  // nothing where that is usual.
  std::optional<RankWait> WaitOf(const JobDescription& job) const;
  // Returns nothing for a job that does not run, or has no pipeline.
  std::optional<PipelineReport> PipelineOf(const JobDescription& job) const;

  void OnGenerationBegan(const GenerationBegin& begin) override;
  absl::Status OnResume(const std::vector<GenerationResumed>& running) override;
  void OnRegroupWanted(absl::string_view job, Generation generation,
                       absl::string_view reason) override;
  void OnCatchUpWanted(
      absl::string_view job, Generation generation,
      const std::vector<schedule::Newcomer>& newcomers) override;
  void OnGenerationEnded(absl::string_view job, Generation generation,
                         const absl::Status& reason) override;
  void OnMemberLeft(absl::string_view job, Generation generation,
                    int rank) override;

 private:
  // What one thread does of an outbox at once, beside two for each rank.
  static constexpr size_t kTurn = 64;
  // A rank's last attachment (0: none), and the epoch that it sends in.
  struct Sender {
    uint64_t attachment = 0;
    schedule::Epoch epoch;
  };
  // One generation.
  struct Run {
    Run(const ScheduleLimits& limits, const GenerationBegin& begin, Term term,
        absl::Time now, JobSchedule::Asks asks)
        : job(begin.job),
          generation(begin.generation),
          begin(begin),
          asks(asks),
          turn(kTurn + 2 * static_cast<size_t>(begin.world_size)),
          schedule(std::in_place, limits, begin, now, std::move(asks)),
          epoch({0, term.value()}),
          senders(static_cast<size_t>(begin.world_size)) {}

    const std::string job;
    const Generation generation;
    const GenerationBegin begin;
    const JobSchedule::Asks asks;
    const size_t turn;
    // Held while a position is handed to the store, so that none passes a newer
    // one or the removal of them all; taken before `mutex`.
    Mutex handing;
    Mutex mutex;
    std::optional<JobSchedule> schedule ABSL_GUARDED_BY(mutex);
    schedule::Epoch epoch ABSL_GUARDED_BY(mutex);
    std::vector<Sender> senders ABSL_GUARDED_BY(mutex);  // by rank
    ScheduleOutbox outbox ABSL_GUARDED_BY(mutex);
    bool emptying ABSL_GUARDED_BY(mutex) = false;  // a thread empties it
    // The last decisions that ranks which left had received, by stream;
    // persisted. Of as many streams as the schedule has, with the bounds of
    // CheckPosition(), until the generation ends.
    std::map<std::string, schedule::Decision> kept ABSL_GUARDED_BY(mutex);
    // The rounds of them that were handed to the store.
    std::map<std::string, int64_t> handed ABSL_GUARDED_BY(mutex);
    // The last decision of "train" to regroup.
    int64_t regroup_round ABSL_GUARDED_BY(mutex) = -1;
  };
  using RunPtr = std::shared_ptr<Run>;

  RunPtr MakeRun(const GenerationBegin& begin);
  // Nothing, if a position cannot be read; it is in quarantine then.
  absl::StatusOr<std::optional<JobSchedule::ResumedFrom>> ReadResumed(
      const GenerationResumed& resumed) const;
  absl::Status DropTables(const std::set<std::string>& kept);
  // Null if it is not the job's last one.
  RunPtr Find(absl::string_view job, Generation generation) const;
  std::vector<RunPtr> AllRuns() const;
  // Makes room for one more, if there must be.
  void EvictLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<schedule::Plan> NextPlan(const std::string& job,
                                         Generation generation, int64_t step);
  std::string NameOf(const std::string& job, Generation generation,
                     int rank) const;
  std::vector<MemberDescription> MembersOf(const Run& run) const;
  // The report of a job whose last generation has no schedule here.
  ScheduleReport ReportWithout(const JobDescription& job) const;

  // Calls `act`, and then does what it asks for.
  using Action =
      absl::FunctionRef<absl::Status(JobSchedule*, JobSchedule::Effects*)>;
  absl::Status Do(const RunPtr& run, Action act);
  // The same for what an attached rank has sent, if that counts.
  absl::Status DoFor(const AttachedRank& attached, Action act);
  // Returns whether the generation's epoch has become a later one, with another
  // schedule: then CutOffOthers() comes next, without the lock.
  bool RaiseEpochLocked(const schedule::Epoch& epoch,
                        Run* run) const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void CutOffOthers(const Run& run, const schedule::Epoch& epoch, int rank);
  void Empty(const RunPtr& run);
  void CarryOut(const RunPtr& run, const JobSchedule::Effects& effects);
  // Reports to the membership what has become of a regroup.
  void NoteRegroups(const RunPtr& run, const JobSchedule::Effects& effects);
  // The last decision of a rank that leaves: known at once, and persisted by
  // Keep.
  static void KeepLocked(const JobSchedule::Position& position,
                         Run* run) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void Keep(const RunPtr& run, const std::string& stream);
  // `pause`: since the last look at all.
  void TickRun(const RunPtr& run, absl::Duration pause, absl::Time now);

  const ScheduleLimits limits_;
  const Dependencies deps_;
  mutable Mutex mutex_;  // taken before that of a run
  std::map<std::string, RunPtr, std::less<>> runs_
      ABSL_GUARDED_BY(mutex_);  // by job
  std::optional<absl::Time> last_tick_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_SCHEDULE_SCHEDULE_REGISTRY_H_
