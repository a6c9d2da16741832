#ifndef COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/random.h"
#include "schedule/plan.h"
#include "server/generation/fence.h"
#include "server/membership/job_record.h"
#include "server/membership/membership_records.h"
#include "server/membership/membership_types.h"
#include "server/options/options.h"
#include "server/plan/plan_room.h"
#include "server/state/state_writer.h"

namespace coxswain::server {

// Who is in which job. A job's life:
//
//            round closes          a member is lost or fails, or all left
//   forming --------------> running ------------------------------> ended
//      ^                       |                                      |
//      |                       | (workers wait for the next round)    |
//      +-----------------------+----- a worker joins -----------------+
//
// Each time it runs it has a new generation number, never used before, not by
// an earlier coordinator on the same state either. What happens is decided by
// pure functions (DecideRound, DecideGrowth, DecideLiveness, AssignRanks, and
// those of job_rules.h); this class keeps the table and does what they say. The
// reason of an event is worded once, for the log, the description and the
// error.
//
// A generation is durable before any member hears of it, and who leaves is told
// so once that is durable: a later coordinator on the same state goes on with
// it. While it is being committed, calls that change its job wait for the
// outcome; those of other jobs go on, for nothing waits for the disk, nor
// encodes what may be large, under the lock. That a generation has ended is
// told at once, and written behind; a coordinator that died in between finds
// its members gone by their leases. Rounds are not kept: their workers ask
// again.
//
// Life-cycle: Open(), AddObserver(), Resume(), then requests and Tick() from
// any thread, then Shutdown(). Thread-safe. Callbacks, sinks and observers are
// called without any lock held, from any thread that calls this class or that
// the state writer calls back on. The observers learn of a job's events one
// after the other and in their order, and the workers of a generation of it
// after them.
class Membership : public FenceGate {
 public:
  using JoinCallback = server::JoinCallback;
  using EventSink = server::EventSink;
  using LeaveCallback = std::function<void(const absl::Status&)>;
  using ReportCallback = std::function<void(const absl::Status&)>;

  // What the table stands on; all must outlive it.
  struct Rooms {
    Clock* clock = nullptr;
    RandomSource* random = nullptr;
    StateWriter* store = nullptr;
    PlanRoom* plans = nullptr;
  };

  // Begins a new term on `rooms.store`, and reads what earlier terms have left.
  // Generations begin after `used`, if that is higher than what is stored: what
  // outlives the store has seen it. A record of a job that cannot be read goes
  // into quarantine, and ends the generation of that job. DATA_LOSS,
  // FAILED_PRECONDITION: the records of the cluster cannot be read; nothing was
  // changed.
  static absl::StatusOr<std::unique_ptr<Membership>> Open(
      const MembershipOptions& options, const Rooms& rooms,
      Generation used = Generation(0));
  // Waits for what is being written.
  ~Membership() override;

  // Before the first request only.
  void AddObserver(GenerationObserver* observer);
  // Once, after that: tells the observers which generations an earlier term has
  // left running. Their members are given the reattach grace from now on.
  absl::Status Resume();

  const std::string& cluster_id() const { return cluster_id_; }
  Term term() const { return term_; }

  // Calls back once, when the round is complete or the worker is refused; the
  // status codes are those of Rendezvous.Join. The result is for Withdraw().
  uint64_t Join(JoinRequest request, JoinCallback callback);
  // The worker waits no longer; its callback is dropped.
  void Withdraw(uint64_t ticket);

  // Tells `sink` everything that concerns this member from now on. Takes the
  // place of an earlier attachment of the same incarnation. The fence may be of
  // an earlier term; of a later one: UNAVAILABLE, this coordinator is not the
  // last. The result is for Heartbeat() and Detach().
  absl::StatusOr<uint64_t> Attach(const Fence& fence, EventSink sink);
  // FAILED_PRECONDITION: not attached any more.
  absl::Status Heartbeat(uint64_t attachment, const Progress& progress);
  // NOT_FOUND: not attached any more.
  absl::StatusOr<Seat> SeatOf(uint64_t attachment) const;
  // The connection was lost. Nothing if the attachment has ended already.
  void Detach(uint64_t attachment);

  // Says where the holder of this attachment stands in for a coordinator that
  // is gone; empty: nowhere. That of rank 0 counts, and is told to the others:
  // to those that are attached, and to those that attach later.
  // INVALID_ARGUMENT: no address, as CheckStandIn() finds.
  absl::Status CheckStandIn(absl::string_view address) const;
  absl::Status NoteStandIn(uint64_t attachment, absl::string_view address);

  // The data connections from the holder of this attachment to these ranks
  // broke.
  void NotePeersBroken(uint64_t attachment, const std::vector<int>& ranks);

  // Calls back once the departure is durable, with NOT_FOUND for an unknown
  // member, or with the error of the state store: then it has not left, and may
  // ask again. One that failed counts at once.
  void Leave(const Fence& fence, const LeaveNotice& notice,
             LeaveCallback callback);
  // The same, and waits for it. Not on a thread of the state writer.
  absl::Status Leave(const Fence& fence, absl::string_view reason, bool failed,
                     bool rejoin = false);
  // Counts at once, and calls back once that is durable. UNAVAILABLE: it is
  // not, and is to be reported again, for another coordinator may never hear of
  // it.
  void ReportExit(
      const ExitReport& report,
      ReportCallback callback = [](const absl::Status&) {});

  // For the schedule room. All of them do nothing if this generation of the
  // job does not run any more.
  //
  // Sends the messages in their order; those that end the generation once that
  // is durable. A rank that is not attached at the moment gets none: it asks
  // again once it is.
  void Tell(absl::string_view job, Generation generation,
            const std::vector<schedule::Message>& messages);
  // Ends the attachments of all but this rank as if their connections were
  // lost: their holders are to attach again.
  void CutOffOthers(absl::string_view job, Generation generation, int rank,
                    const absl::Status& reason);
  // No attachment of this coordinator is higher yet.
  uint64_t NewestAttachment() const;
  // Whether the last decision on a step that is known sends the ranks to the
  // next generation: one may have been made otherwise.
  void NoteRegroup(absl::string_view job, Generation generation, bool decided);
  // Ends it with this reason and the payloads of the status.
  void AbortGeneration(absl::string_view job, Generation generation,
                       const absl::Status& reason);
  // The plan was changed while it runs.
  void NotePlan(absl::string_view job, Generation generation,
                const schedule::Plan& plan);
  // When something was heard of each rank, beside its heartbeats.
  void NoteSigns(absl::string_view job, Generation generation,
                 const std::vector<absl::Time>& heard);

  // By rank, also after the end, until the next generation begins; NOT_FOUND
  // then.
  absl::StatusOr<std::vector<MemberDescription>> MembersOf(
      absl::string_view job, Generation generation) const;

  // All of the caller's generation, by rank. Errors as Admit().
  absl::StatusOr<std::shared_ptr<const std::vector<Member>>> PeersOf(
      const Fence& fence) const;

  absl::StatusOr<Caller> Admit(const Fence& fence) const override;
  // The attachment of the caller. NOT_FOUND: there is none; errors as Admit().
  absl::StatusOr<uint64_t> AttachmentOf(const Fence& fence) const;
  absl::Status AdmitOperator(const Fence& fence) const override;

  // All jobs, or the one that is named; NOT_FOUND if it is not known.
  absl::StatusOr<std::vector<JobDescription>> Describe(
      absl::string_view job) const;
  // All jobs, by name.
  std::vector<JobSummary> Summaries() const;
  // Calls back once what was described before is durable.
  void AfterWritten(std::function<void()> done) const {
    rooms_.store->AfterWritten(std::move(done));
  }

  // Looks at all deadlines. To be called often, compared with a lease: after
  // a longer pause everyone is given a lease from then on (see StoodStill).
  void Tick();

  // Answers everyone who waits and closes all streams with UNAVAILABLE, as it
  // does every later request. Observers are told, so that their waiters are
  // answered too. The generations go on with the next coordinator.
  void Shutdown();

 private:
  using Job = JobRecord;
  using Run = RunRecord;
  using Refusal = RoundRefusal;

  using Calls = CallList;
  // Changes a job, with the lock held.
  using Change = std::function<void(Calls*)>;
  static void RunAll(const Calls& calls);

  Membership(const MembershipOptions& options, const Rooms& rooms)
      : options_(options), rooms_(rooms) {}

  // membership_restore.cc: what is kept.
  absl::Status BeginTerm(Generation used);
  void RestoreLocked(LoadedJob loaded) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Jobs of which only this is known: their own record is in quarantine.
  void RestoreUnknownLocked(const std::vector<QuarantinedRecord>& quarantined)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<GenerationResumed> FindResumedLocked()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the generations that lack a plan, or a record that is in quarantine.
  void EndDamagedLocked(const std::vector<QuarantinedRecord>& quarantined,
                        Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes what has become of the job, behind; once more later if that fails.
  void SaveLocked(StateBatch batch, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SaveAgainLocked(Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteUnsaved(const std::string& job, const absl::Status& status);
  // Of a generation that did not begin: to be dropped by and by.
  void DiscardLocked(const StateBatch& tables)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops a batch of it.
  void DropGarbageLocked(Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In the order of these calls; `done` runs without the lock.
  void WriteLocked(StateBatch batch, StateWriter::Done done, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // membership_join.cc: who may join, and when.
  //
  // Answers the request, or lets its worker wait with this ticket.
  void TakeJoinLocked(JoinRequest request, JoinCallback callback,
                      uint64_t ticket, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same once the commit of its job has ended. Answers UNAVAILABLE where
  // too many wait for that.
  void DeferJoinLocked(JoinRequest request, JoinCallback callback,
                       uint64_t ticket, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status JoinLocked(JoinRequest* request, const JoinCallback& callback,
                          uint64_t ticket, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Job*> FindOrAddJobLocked(const std::string& name, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetLocked(const Job& job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Refuses workers of an earlier attempt; a later one ends what runs.
  absl::Status CheckAttemptLocked(const JoinRequest& request, Job* job,
                                  Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing, if the worker is to wait; else how the request is answered.
  std::optional<absl::StatusOr<JoinResult>> JoinRunningLocked(
      const JoinRequest& request, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same for a member of the running generation.
  std::optional<absl::StatusOr<JoinResult>> JoinAgainLocked(
      const JoinRequest& request, MemberRecord* record, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // membership_room.cc: who waits.
  //
  // Makes sure that the worker may wait in this round. The result is its place
  // in the order of arrival; 0: behind all others.
  absl::StatusOr<uint64_t> EnterRoundLocked(const JoinRequest& request,
                                            Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether one that waits already keeps this worker from waiting. To be called
  // before anything is done for its request: what is refused has no effect.
  absl::Status CheckWaitersLocked(const JoinRequest& request,
                                  const Job& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status BindRoundLocked(const JoinRequest& request, Job* job,
                               Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether so many wait already that this one may not.
  absl::Status CheckSparesLocked(const JoinRequest& request,
                                 const Job& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A process of the same launcher joins in the place of a survivor, which
  // therefore is dead.
  void ReplaceSurvivorLocked(const JoinRequest& request, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Another process waits in case that this member is gone. It is not.
  void RefuseDuplicateLocked(const Member& member, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WithdrawLocked(uint64_t ticket, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // membership_refusal.cc: rounds whose manifests differ.
  //
  // What a worker is told at once whose round has just been refused.
  absl::Status CheckRefusalLocked(const JoinRequest& request, Job* job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether it has the manifest of the last generation.
  absl::Status CheckSameManifestLocked(const Manifest& manifest,
                                       const Job& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells all who wait how their manifests differ.
  void RefuseRoundLocked(absl::string_view present, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // membership_round.cc: from who waits to a generation.
  //
  // Nothing unless the job is forming.
  void DecideRoundLocked(Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DecideRoundLocked(absl::Time now, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseRoundLocked(absl::string_view reason, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Run NextRunLocked(absl::string_view reason, std::vector<Member> members,
                    const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginRunLocked(Run run, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnnounceLocked(Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers a Join once more, not before its first answer.
  absl::Status AnswerAgainLocked(std::function<void()> answer, Job* job,
                                 Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireWaitersLocked(absl::string_view reason, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nobody waits any more; `status` is the answer to those who did.
  void EndRoundLocked(const absl::Status& status, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUpRoundLocked(const absl::Status& status, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerAllLocked(const absl::Status& status, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes a waiter; `answer` is its result.
  void AnswerLocked(const WorkerIdentity& identity,
                    absl::StatusOr<JoinResult> answer, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  JoinResult ResultLocked(const Job& job, int rank) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DecideGrowthLocked(absl::Time now, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // membership_commit.cc: from a generation to one that is durable.
  //
  // Commits `run`, which begins then, while other changes of the job wait.
  void CommitRunLocked(Run run, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNextTable(const std::shared_ptr<RunCommit>& commit);
  void NoteTableWritten(const std::shared_ptr<RunCommit>& commit,
                        const absl::Status& written);
  // The generation begins with this plan, or its round fails.
  void FinishCommit(const std::shared_ptr<RunCommit>& commit,
                    absl::StatusOr<schedule::Plan> plan);
  // Makes the change now or, while a generation of the job is being committed,
  // after that.
  void ChangeLocked(Change change, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // UNAVAILABLE: as many calls wait for a commit of the job as may.
  absl::Status CheckTurnLocked(const Job& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // membership_leave.cc: members that leave of their own accord.
  void LeaveLocked(const Fence& fence, LeaveNotice notice,
                   LeaveCallback callback, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Once it is durable, or is not.
  void FinishLeave(const Fence& fence, const LeaveNotice& notice,
                   const absl::Status& written, const LeaveCallback& callback);
  void FinishLeaveLocked(const Fence& fence, const LeaveNotice& notice,
                         Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a departure that is durable, or is written behind, brings with it.
  void DepartLocked(const LeaveNotice& notice, MemberRecord* record, Job* job,
                    Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(const LeaveNotice& notice, MemberRecord* record, Job* job,
                  Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellDepartureLocked(const MemberRecord& record, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // membership_attach.cc: what attached workers are told.
  //
  // Whether they hear for the first time that they are to make way.
  bool NoteRegroupLocked(const std::vector<schedule::Message>& messages,
                         Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // membership_end.cc: members that are lost, and the end of generations.
  void DecideLivenessLocked(absl::Time now, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether all that has become of the job is written.
  absl::Status CheckSaved(const std::string& name) const;
  void ReportExitLocked(const ExitReport& report, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportWaiterExitLocked(const ExitReport& report, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoseMemberLocked(absl::string_view why, MemberRecord* record, Job* job,
                        Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One that was expected in the next generation will not come.
  void LoseSurvivorLocked(absl::string_view why, MemberRecord* record, Job* job,
                          Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWellLocked(Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `lost`: who is at fault, if anybody.
  void EndGenerationLocked(const absl::Status& status, const MemberRecord* lost,
                           Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpectSurvivorsLocked(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotifyEndLocked(const absl::Status& status, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseStreamLocked(const absl::Status& status, MemberRecord* record,
                         Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Calls each observer, after all notices of the job so far.
  void NotifyLocked(std::function<void(GenerationObserver*)> notice, Job* job,
                    Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes these calls after all notices of the job so far.
  void CallInOrderLocked(Calls notices, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Null if that generation does not run any more.
  Job* FindRunningLocked(absl::string_view job, Generation generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckWorldLocked(const Fence& fence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Cluster and term of a fence, and its job.
  absl::StatusOr<const Job*> FindFencedJobLocked(const Fence& fence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<const MemberRecord*> AdmitLocked(const Fence& fence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  MemberDescription DescribeLocked(const MemberRecord& record) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What its round waits for.
  std::string DescribeRoundLocked(const Job& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  JobDescription DescribeLocked(const Job& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const MembershipOptions options_;
  const Rooms rooms_;
  std::string cluster_id_;
  Term term_;
  std::vector<GenerationObserver*> observers_;

  mutable Mutex mutex_;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time last_tick_ ABSL_GUARDED_BY(mutex_);
  int64_t next_generation_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_handle_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mutex_);
  // Where a ticket or an attachment leads; gone once it has ended.
  std::map<uint64_t, std::pair<std::string, WorkerIdentity>> tickets_
      ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::pair<std::string, int>> attachments_
      ABSL_GUARDED_BY(mutex_);  // job and rank
  // Tables of generations that never began. Of too many, some are left to the
  // next start.
  std::deque<std::string> garbage_ ABSL_GUARDED_BY(mutex_);
  absl::Time drop_garbage_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_H_
