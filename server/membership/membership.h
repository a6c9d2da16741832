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

#include "absl/functional/function_ref.h"
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
#include "server/generation/generation_guard.h"
#include "server/membership/job_effects.h"
#include "server/membership/job_membership.h"
#include "server/membership/membership_records.h"
#include "server/membership/membership_types.h"
#include "server/membership/ordered_calls.h"
#include "server/options/options.h"
#include "server/plan/plan_store.h"
#include "server/state/state_writer.h"

namespace coxswain::server {

// Holds the members of all jobs: a registry of JobMembership, a state machine
// for each job. It owns what they do not have: the lock, the clock, the numbers
// of generations, joins and attachments, the store, and the threads. It passes
// events to a job under the lock, and carries out the effects that the job
// returns: writes are handed to the writer in that order, and all other effects
// follow once the lock is released.
//
// Each generation of a job has a number that was never used before, not by an
// earlier coordinator on the same state either. It is durable before any member
// is notified of it, and a Leave is answered once it is durable: a later
// coordinator on the same state resumes it. While it is being committed, calls
// that change its job wait for the outcome; those of other jobs do not, for
// nothing waits for the disk, nor encodes large messages, under the lock. That
// a generation has ended is sent at once, and written behind; after a crash in
// between, the next coordinator finds its members lost by their leases. Rounds
// are not kept: their workers ask again.
//
// Life-cycle: Open(), AddObserver(), Resume(), then requests and Tick() from
// any thread, then Shutdown(). Thread-safe. Callbacks, sinks and observers are
// called without any lock held, from any thread that calls this class or that
// the state writer calls back on. The observers are notified of a job's events
// in order, one after the other, and the workers of a generation after them.
class Membership : public FenceValidator {
 public:
  using JoinCallback = server::JoinCallback;
  using EventSink = server::EventSink;
  using LeaveCallback = StatusCallback;
  using ReportCallback = StatusCallback;

  // Components that it uses; all must outlive it.
  struct Dependencies {
    Clock* clock = nullptr;
    RandomSource* random = nullptr;
    StateWriter* store = nullptr;
    PlanStore* plans = nullptr;
  };

  // Begins a new term on `deps.store`, and reads what earlier terms have left.
  // Generations begin after `used`, if that is higher than what is stored: what
  // outlives the store has seen it. A record of a job that cannot be read goes
  // into quarantine, and ends the generation of that job. DATA_LOSS,
  // FAILED_PRECONDITION: the records of the cluster cannot be read; nothing was
  // changed.
  static absl::StatusOr<std::unique_ptr<Membership>> Open(
      const MembershipOptions& options, const Dependencies& deps,
      Generation used = Generation(0));
  // Waits for what is being written.
  ~Membership() override;

  // Before the first request only.
  void AddObserver(GenerationObserver* observer);
  // Once, after that: notifies the observers of the generations that an earlier
  // term has left running. Their members are given the reattach grace from now
  // on.
  absl::Status Resume();

  const std::string& cluster_id() const { return coordinator_.cluster_id; }
  Term term() const { return coordinator_.term; }

  // Calls back once, when the round is complete or the worker is refused; the
  // status codes are those of Rendezvous.Join. The result is for Withdraw().
  uint64_t Join(JoinRequest request, JoinCallback callback);
  // The worker waits no longer; its callback is dropped.
  void Withdraw(uint64_t join_id);

  // Sends all events of this member to `sink` from now on. Takes the place of
  // an earlier attachment of the same incarnation. The fence may be of an
  // earlier term; of a later one: UNAVAILABLE, this coordinator is not the
  // last. The result is for Heartbeat() and Detach().
  absl::StatusOr<uint64_t> Attach(const Fence& fence, EventSink sink);
  // FAILED_PRECONDITION: not attached any more.
  absl::Status Heartbeat(uint64_t attachment, const Progress& progress);
  // NOT_FOUND: not attached any more.
  absl::StatusOr<AttachedRank> AttachedRankOf(uint64_t attachment) const;
  // The connection was lost. Does nothing if the attachment has ended already.
  void Detach(uint64_t attachment);

  // Takes the address at which the holder of this attachment is the fallback
  // coordinator; empty: it is not. That of rank 0 counts, and is sent to the
  // others: to those that are attached, and to each that calls this later.
  // INVALID_ARGUMENT: no address, as CheckFallbackAddress() finds.
  absl::Status CheckFallbackAddress(absl::string_view address) const;
  absl::Status NoteFallbackAddress(uint64_t attachment,
                                   absl::string_view address);

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
  // not, and is to be reported again, for another coordinator may never receive
  // it.
  void ReportExit(
      const ExitReport& report,
      ReportCallback callback = [](const absl::Status&) {});

  // For server/schedule. All of them do nothing if this generation of the
  // job does not run any more.
  //
  // Sends the messages in their order; those that end the generation once that
  // was written, or could not be. A rank that is not attached gets none: it
  // asks again once it is.
  void SendMessages(absl::string_view job, Generation generation,
                    const std::vector<schedule::Message>& messages);
  // Ends the attachments of all but this rank as if their connections were
  // lost: their holders are to attach again.
  void CutOffOthers(absl::string_view job, Generation generation, int rank,
                    const absl::Status& reason);
  // Whether the last decision on a step that is known sends the ranks to the
  // next generation: one may have been made otherwise.
  void NoteRegroup(absl::string_view job, Generation generation, bool decided);
  // Ends it with this reason and the payloads of the status.
  void AbortGeneration(absl::string_view job, Generation generation,
                       const absl::Status& reason);
  // The plan was changed while it runs.
  void NotePlan(absl::string_view job, Generation generation,
                const schedule::Plan& plan);
  // When each rank last gave a sign of life, beside its heartbeats.
  void NoteSigns(absl::string_view job, Generation generation,
                 const std::vector<absl::Time>& contacts);

  // By rank, also after the end, until the next generation begins; NOT_FOUND
  // then.
  absl::StatusOr<std::vector<MemberDescription>> MembersOf(
      absl::string_view job, Generation generation) const;

  // All of the caller's generation, by rank. Errors as Admit().
  absl::StatusOr<std::shared_ptr<const std::vector<Member>>> PeersOf(
      const Fence& fence) const;

  // Returns how often members are to send heartbeats.
  absl::Duration heartbeat_interval() const {
    return options().heartbeat_interval;
  }

  absl::StatusOr<Caller> Admit(const Fence& fence) const override;
  // Returns the attachment of the caller. NOT_FOUND: there is none; errors as
  // Admit().
  absl::StatusOr<uint64_t> AttachmentOf(const Fence& fence) const;
  absl::Status AdmitOperator(const Fence& fence) const override;

  // Returns how the generation ended that this process was a member of; nothing
  // if it runs, ended well, or another one has begun since.
  std::optional<GenerationEnd> EndOf(const ExitReport& report) const;

  // All jobs, or the one that is named; NOT_FOUND if it is not known.
  absl::StatusOr<std::vector<JobDescription>> Describe(
      absl::string_view job) const;
  // All jobs, by name.
  std::vector<JobSummary> Summaries() const;
  // Calls back once what was described before is durable.
  void AfterWritten(std::function<void()> done) const {
    deps_.store->AfterWritten(std::move(done));
  }

  // Checks all deadlines. To be called often, compared with a lease: after a
  // longer pause each member is given a lease from then on (see WasPaused).
  void Tick();

  // Answers all waiting calls and closes all streams with UNAVAILABLE, as it
  // does every later request. Observers are notified, so that their waiters are
  // answered too. The generations continue with the next coordinator.
  void Shutdown();

 private:
  struct Job {
    JobMembership machine;
    // What observers are notified with. Shared with calls that are yet to be
    // made.
    std::shared_ptr<OrderedCalls> notices;
  };
  // Calls to make once the lock is released, in order.
  using Calls = std::vector<std::function<void()>>;
  using Change =
      absl::FunctionRef<void(JobMembership*, absl::Time, JobEffects*)>;
  using ChangeByRank = absl::FunctionRef<void(JobMembership*, int rank,
                                              absl::Time, JobEffects*)>;
  struct Carrier;

  Membership(const MembershipOptions& options, const Dependencies& deps);
  const MembershipOptions& options() const { return coordinator_.options; }

  // membership_open.cc: what earlier terms have left.
  absl::Status BeginTerm(Generation used);
  void RestoreLocked(std::vector<LoadedJob> loaded,
                     const std::vector<QuarantinedRecord>& quarantined)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // membership.cc: jobs.
  //
  // Makes a change of the job, and carries out its effects. Returns false if
  // there is no such job.
  bool ChangeJob(const std::string& name, Change change);
  // The same if this generation of it runs, else nothing.
  void ChangeRunning(absl::string_view job, Generation generation,
                     Change change);
  // The same for the job of this attachment.
  bool ChangeAttached(uint64_t attachment, ChangeByRank change);
  void ChangeLocked(Change change, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Job*> FindOrAddJobLocked(const std::string& name, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Job* AddJobLocked(const std::string& name, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetLocked(const JobMembership& job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool stops() const {
    MutexLock lock(&mutex_);
    return shut_down_;
  }
  // membership_requests.cc: requests.
  //
  // Whether all that has become of the job is written.
  absl::Status CheckSaved(const std::string& name,
                          std::optional<int64_t> failures) const;

  // membership_queries.cc: queries.
  absl::Status CheckWorldLocked(const Fence& fence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Cluster and term of a fence, and its job.
  absl::StatusOr<const JobMembership*> FindFencedJobLocked(
      const Fence& fence) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<const MemberRecord*> AdmitLocked(const Fence& fence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // membership_effects.cc: effects of the jobs. Gives the answer of a Join.
  static void Give(const job_effect::Answer& answer);
  // Hands to the writer what is written, and adds the other effects to `calls`,
  // in their order.
  void CarryOutLocked(JobEffects effects, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In the order of these calls; `done` runs without the lock.
  void WriteLocked(StateBatch batch, StateWriter::Done done, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteUnsaved(const std::string& job, const absl::Status& status);
  void ReplyWhenSaved(const std::string& job, std::optional<int64_t> failures,
                      const StatusCallback& callback);
  void FinishDeparture(const std::string& job,
                       const job_input::DepartureWritten& written,
                       const absl::Status& status);
  // Writes the tables of the generation, and has its plan made.
  void WriteGeneration(const std::shared_ptr<RunCommit>& commit);
  void WriteNextTable(const std::shared_ptr<RunCommit>& commit);
  void NoteTableWritten(const std::shared_ptr<RunCommit>& commit,
                        const absl::Status& written);
  void FinishCommit(const std::string& job,
                    absl::StatusOr<schedule::Plan> plan);
  // Of a generation that did not begin: to be dropped eventually.
  void DiscardLocked(const StateBatch& tables)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops a batch of it.
  void DropGarbageLocked(Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Not changed once it is open.
  JobMembership::Coordinator coordinator_;
  const Dependencies deps_;
  std::vector<GenerationObserver*> observers_;

  mutable Mutex mutex_;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time last_tick_ ABSL_GUARDED_BY(mutex_);
  int64_t next_generation_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_handle_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mutex_);
  // The worker of a join and the rank of an attachment, until it has ended.
  std::map<uint64_t, std::pair<std::string, WorkerIdentity>> joins_
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
