#ifndef COXSWAIN_SERVER_MEMBERSHIP_JOB_MEMBERSHIP_H_
#define COXSWAIN_SERVER_MEMBERSHIP_JOB_MEMBERSHIP_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "schedule/plan.h"
#include "server/generation/fence.h"
#include "server/membership/job_effects.h"
#include "server/membership/job_record.h"
#include "server/membership/membership_records.h"
#include "server/membership/membership_types.h"
#include "server/membership/round.h"
#include "server/membership/run_commit.h"
#include "server/membership/stalled_members.h"
#include "server/options/options.h"
#include "server/state/quarantine.h"

namespace coxswain::server {

// Holds the membership of one job. Its life-cycle:
//
//            round closes          a member is lost or fails, or all left
//   forming --------------> running ------------------------------> ended
//      ^                       |                                      |
//      |                       | (workers wait for the next round)    |
//      +-----------------------+----- a worker joins -----------------+
//
// A state machine: it takes events with their times, and appends effects to a
// list. No clock, no locks, no store, and no calls: callbacks and sinks are
// kept and handed out again.
//
// While a generation is being committed, inputs wait for the outcome, in their
// order: the job looks as if the commit took no time.
class JobMembership {
 public:
  // What the jobs of a coordinator have in common.
  struct Coordinator {
    MembershipOptions options;
    std::string cluster_id;
    Term term;
    // Takes the clock of all inputs to the calendar.
    absl::Duration calendar;
    // Returns a number that no generation has had.
    std::function<Generation()> next_generation;
    // Returns the secret of a new generation, which overwrites itself at its
    // end. It is never copied here.
    std::function<std::shared_ptr<const std::string>()> new_data_key;
  };

  // A new job. The coordinator must outlive it.
  JobMembership(const Coordinator* coordinator, absl::string_view name,
                absl::Time now);
  // Restores the state that an earlier term has left; right after the
  // constructor. The plan is that of the job, if there is one.
  void Restore(LoadedJob loaded, std::optional<schedule::Plan> plan,
               absl::Time now);
  // The same for a job whose own record is in quarantine.
  void RestoreUnknown();
  // Returns the generation that continues, if there is one. Its members are
  // given the reattach grace from now on.
  std::optional<GenerationResumed> Resume(absl::Time now);
  // Once the observers have resumed: ends a generation that lacks a plan or a
  // record, or whose last member had left, and saves what Restore() has found.
  void FinishResume(const std::vector<QuarantinedRecord>& quarantined,
                    absl::Time now, JobEffects* effects);

  // Takes the input now or, while a generation is being committed, after that.
  // Answers with UNAVAILABLE where too many inputs wait for that.
  void Take(JobInput input, absl::Time now, JobEffects* effects);
  // The generation of job_effect::Commit begins with this plan, or its round
  // fails.
  void FinishCommit(absl::StatusOr<schedule::Plan> plan, absl::Time now,
                    JobEffects* effects);
  // The answers of job_effect::Announce were given.
  void Announced(Generation generation, JobEffects* effects);

  // What job_effect::Save has written is not durable: it is tried again.
  void NoteUnsaved(absl::Time now);
  // UNAVAILABLE: something of it is not written.
  absl::Status CheckSaved() const;
  // The same for what was written since there were so many failures.
  absl::Status CheckSavedSince(int64_t failures) const;

  // Attaches a member of the generation that runs, with the number that the
  // attachment is to have, and returns its rank. Errors as Admit(). A member
  // that asks once its generation has ended is refused, and has shown that it
  // lives.
  absl::StatusOr<int> Attach(Generation generation, Incarnation incarnation,
                             uint64_t attachment, EventSink sink,
                             absl::Time now, JobEffects* effects);
  // These take what the member of this rank, which is attached, has sent.
  void NoteProgress(int rank, const Progress& progress, absl::Time now);
  void Detach(int rank, absl::Time now, JobEffects* effects);
  void NotePeersBroken(int rank, const std::vector<int>& ranks, absl::Time now);
  void NoteFallbackCoordinator(int rank, absl::string_view address,
                               JobEffects* effects);

  // Returns whether this generation runs. What follows is for that one.
  bool Runs(Generation generation) const;
  void SendMessages(const std::vector<schedule::Message>& messages,
                    JobEffects* effects);
  void CutOffOthers(int rank, const absl::Status& reason, absl::Time now,
                    JobEffects* effects);
  void NoteRegroup(bool decided, JobEffects* effects);
  void Abort(const absl::Status& reason, absl::Time now, JobEffects* effects);
  void NotePlan(const schedule::Plan& plan);
  void NoteSigns(const std::vector<absl::Time>& contacts);

  // Checks all deadlines. `paused`: no member's time has passed.
  void Tick(bool paused, absl::Time now, JobEffects* effects);
  // Answers all waiting calls and closes all streams with this status, as every
  // later input. The generation continues with the next coordinator.
  void Shutdown(const absl::Status& status, absl::Time now,
                JobEffects* effects);

  // Returns the member of the generation that runs. FAILED_PRECONDITION: the
  // generation or the incarnation is stale.
  absl::StatusOr<const MemberRecord*> Admit(Generation generation,
                                            Incarnation incarnation) const;
  // Returns how the last generation ended, if the process that is reported was
  // a member of it, and it did not end well.
  std::optional<GenerationEnd> EndOf(const ExitReport& report) const;
  JobDescription Describe(absl::Time now) const;
  JobSummary Summarise(absl::Time now) const;
  // Of the last generation, by rank.
  std::vector<MemberDescription> Members(absl::Time now) const;
  // Removes what is stored of it.
  void Forget(StateBatch* batch) const;

  const std::string& name() const { return job_.name; }
  JobState state() const { return job_.state; }
  absl::Time ended_at() const { return job_.ended_at; }
  // Returns the last one; 0: none.
  Generation generation() const { return job_.run.generation; }
  const MemberTable& members() const { return job_.run.members; }
  // Null: no generation is being committed.
  const RunCommit* commit() const { return commit_.get(); }

 private:
  const MembershipOptions& options() const { return coordinator_->options; }

  // job_membership.cc: inputs, and whether they wait.
  //
  // UNAVAILABLE: as many wait for the commit as may.
  absl::Status CheckTurn(const JobInput& input) const;
  void TakeDeferred(absl::Time now, JobEffects* effects);
  void CommitRun(RunRecord run, JobEffects* effects);

  // job_membership_join.cc: which workers may join, and when.
  void TakeNow(job_input::Join join, absl::Time now, JobEffects* effects);
  static void Refuse(job_input::Join join, absl::Status status,
                     JobEffects* effects);
  // Answers the request, or makes its worker wait.
  absl::Status DecideJoin(job_input::Join* join, absl::Time now,
                          JobEffects* effects);
  // Refuses workers of an earlier attempt; a later one ends what runs.
  absl::Status CheckAttempt(const JoinRequest& request, absl::Time now,
                            JobEffects* effects);
  // Returns nothing if the worker is to wait; else the answer.
  std::optional<absl::StatusOr<JoinResult>> JoinRunning(
      const JoinRequest& request, absl::Time now, JobEffects* effects);
  // Returns the same for a member of the running generation.
  std::optional<absl::StatusOr<JoinResult>> JoinAgain(
      const JoinRequest& request, MemberRecord* record, absl::Time now,
      JobEffects* effects);

  // job_membership_waiting.cc: waiting workers.
  //
  // Makes sure that the worker may wait in this round. Returns its place in the
  // order of arrival; 0: behind all others.
  absl::StatusOr<uint64_t> EnterRound(const JoinRequest& request,
                                      absl::Time now, JobEffects* effects);
  // Whether one that waits already keeps this worker from waiting. To be called
  // before anything is done for its request: what is refused has no effect.
  absl::Status CheckWaiters(const JoinRequest& request) const;
  absl::Status BindRound(const JoinRequest& request, absl::Time now,
                         JobEffects* effects);
  // Whether so many wait already that this one may not.
  absl::Status CheckSpares(const JoinRequest& request) const;
  // A process of the same launcher joins in the place of a survivor, which
  // therefore is dead.
  void ReplaceSurvivor(const JoinRequest& request, JobEffects* effects);
  // Another process waits in case this member is lost. It is not.
  void RefuseDuplicate(const Member& member, absl::Time now,
                       JobEffects* effects);
  void TakeNow(const job_input::Withdraw& withdraw, absl::Time now,
               JobEffects* effects);

  // job_membership_refusal.cc: rounds whose manifests differ.
  //
  // Fails with the refusal of the round before where it was this worker's.
  absl::Status CheckRefusal(const JoinRequest& request, absl::Time now);
  // Whether it has the manifest of the last generation.
  absl::Status CheckSameManifest(const Manifest& manifest) const;
  // Answers all waiting workers with the difference of their manifests.
  void RefuseRound(absl::string_view present, absl::Time now,
                   JobEffects* effects);

  // job_membership_round.cc: from a round to a generation.
  RoundOptions CurrentRoundOptions() const;
  // Nothing unless the job is forming.
  void LookAtRound(absl::Time now, JobEffects* effects);
  void CloseRound(absl::string_view reason, JobEffects* effects);
  RunRecord NextRun(absl::string_view reason, std::vector<Member> members);
  void BeginRun(RunRecord run, absl::Time now, JobEffects* effects);
  // Logs what to change so that groups of the mesh do not span hosts.
  void LookAtPlacement() const;
  // Answers a Join once more, not before its first answer.
  absl::Status AnswerAgain(job_effect::Answer answer, JobEffects* effects);
  void ExpireWaiters(absl::string_view reason, absl::Time now,
                     JobEffects* effects);
  // Ends the round; `status` is the answer to the workers that wait.
  void EndRound(const absl::Status& status, absl::Time now,
                JobEffects* effects);
  void GiveUpRound(const absl::Status& status, absl::Time now,
                   JobEffects* effects);
  void AnswerAll(const absl::Status& status, absl::Time now,
                 JobEffects* effects);
  // Removes a waiter.
  void Answer(const WorkerIdentity& identity, const absl::Status& status,
              absl::Time now, JobEffects* effects);
  job_effect::Answer AnswerOf(const WorkerIdentity& identity,
                              absl::StatusOr<JoinResult> result,
                              absl::Time now);
  JoinResult ResultFor(int rank) const;
  void LookAtGrowth(absl::Time now, JobEffects* effects);
  // Has the members send these spares their state, where that can be. Returns
  // whether the regroup is to wait for one of them.
  bool AwaitCatchUp(const std::vector<WorkerIdentity>& spares, absl::Time now,
                    JobEffects* effects);
  // Of a member's heartbeat.
  void NoteNewcomers(const Member& member, const Progress& before,
                     const std::vector<NewcomerReport>& reports);

  // job_membership_leave.cc: members that leave of their own accord.
  void TakeNow(job_input::Leave leave, absl::Time now, JobEffects* effects);
  void TakeNow(job_input::DepartureWritten written, absl::Time now,
               JobEffects* effects);
  // Carries out what follows from a departure that is durable, or is written
  // behind.
  void Depart(const LeaveNotice& notice, MemberRecord* record, absl::Time now,
              JobEffects* effects);
  void Fail(const LeaveNotice& notice, MemberRecord* record, absl::Time now,
            JobEffects* effects);
  // Writes it, and answers the Leave once that is durable.
  void WriteDeparture(job_input::DepartureWritten written, int rank,
                      const Departure& departure, JobEffects* effects);
  void SendDeparture(const MemberRecord& record, JobEffects* effects);
  // One that leaves for good is not waited for, nor does it wait.
  void DropSurvivor(const Member& member, absl::Time now, JobEffects* effects);

  // job_membership_attach.cc: attached workers.
  void NoteDetached(absl::Time now, MemberRecord* record);
  // A member of the last generation has shown that it lives, which counts
  // unless it waits for the next one.
  void NoteSign(Incarnation incarnation, absl::Time now);

  // job_membership_end.cc: members that are lost, and the end of generations.
  void LookAtLiveness(absl::Time now, JobEffects* effects);
  // Loses the members that stall the others, or survivors that stall the join
  // round, where the plan asks for it.
  void LookAtStall(absl::Time now, JobEffects* effects);
  // Whether others wait for members, or survivors, that may be stalled.
  bool MayStall() const;
  std::vector<MemberSigns> Signs() const;
  void TakeNow(job_input::Exit exit, absl::Time now, JobEffects* effects);
  void NoteExit(const ExitReport& report, absl::Time now, JobEffects* effects);
  void NoteWaiterExit(const ExitReport& report, absl::Time now,
                      JobEffects* effects);
  void LoseMember(absl::string_view why, MemberRecord* record, absl::Time now,
                  JobEffects* effects);
  // One that was expected in the next generation will not come.
  void LoseSurvivor(absl::string_view why, MemberRecord* record,
                    JobEffects* effects);
  void EndWell(absl::Time now, JobEffects* effects);
  // `lost`: the member at fault, if there is one.
  void EndGeneration(const absl::Status& status, const MemberRecord* lost,
                     absl::Time now, JobEffects* effects);
  void ExpectSurvivors(absl::Time now);
  // Why the last generation or the last round has ended.
  void NoteLastEvent(absl::string_view event, absl::Time now);
  static void CloseStream(const absl::Status& status, MemberRecord* record,
                          JobEffects* effects);

  // job_membership_restore.cc: what is kept.
  void EndIfDamaged(const std::vector<QuarantinedRecord>& quarantined,
                    absl::Time now, JobEffects* effects);
  // Writes the state of the job behind; again later if that fails.
  void Save(StateBatch batch, JobEffects* effects);
  void SaveAgain(JobEffects* effects);

  const Coordinator* coordinator_;
  JobRecord job_;
  int64_t failures_ = 0;  // of Save
  // The last Tick, and since when there was none too many.
  absl::Time looked_at_ = absl::InfinitePast();
  absl::Time looked_since_ = absl::InfinitePast();
  absl::Status shut_down_;  // OK: it is not
  // The generation that is being committed; null: none. Until it has begun or
  // failed, inputs wait in `deferred_`.
  std::shared_ptr<RunCommit> commit_;
  std::deque<JobInput> deferred_;
  size_t deferred_joins_ = 0;
  // Answers that were asked for again before the generation's observers had
  // been notified of it.
  std::map<Generation, std::vector<job_effect::Answer>> announcing_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_JOB_MEMBERSHIP_H_
