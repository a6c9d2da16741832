#ifndef COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_H_

#include <cstdint>
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
#include "server/membership/fence.h"
#include "server/membership/liveness.h"
#include "server/membership/manifest_agreement.h"
#include "server/membership/member.h"
#include "server/membership/round.h"
#include "server/options.h"
#include "server/schedule/plan.h"
#include "server/schedule/plan_room.h"
#include "server/state/state_store.h"

namespace coxswain::server {

struct JoinRequest {
  std::string job;
  WorkerIdentity identity;
  Incarnation incarnation;
  uint64_t launcher_id = 0;  // 0: without a launcher
  std::string host;
  std::string address;
  std::vector<std::string> topology;
  Manifest manifest;
  absl::Duration timeout;
};

struct JoinResult {
  std::string cluster_id;
  Term term;
  Generation generation;
  int rank = 0;
  std::shared_ptr<const std::vector<Member>> members;  // by rank
  Plan plan;
  absl::Duration heartbeat_interval;
  absl::Duration lease;
};

// What an attached worker is told. kClosed is the end: what another thread
// caused a moment before it may still come after it, and is to be ignored.
struct AttachEvent {
  enum class Kind {
    kAbort,       // the generation is over; `member` is who was lost, if any
    kMemberLeft,  // `member` left in good order
    kGrant,       // the exchange of `stream` and `round` may begin
    kDecision,    // of `stream` and `round`: `commit`, `reason`, `stop`, `plan`
    kWarning,     // `reason` is odd, and the generation goes on
    kClosed,      // the stream ends with `status`
  };
  Kind kind = Kind::kClosed;
  std::string reason;
  std::optional<Member> member;
  // kAbort: also carries an ErrorDetail, if there is one.
  absl::Status status;

  std::string stream;
  int64_t round = 0;
  bool commit = false;
  std::string stop;
  std::optional<Plan> plan;
};

// For one rank, or for all of them.
struct DirectedEvent {
  static constexpr int kAllRanks = -1;
  int rank = kAllRanks;
  AttachEvent event;
};

// Which rank of which generation an attachment belongs to.
struct Seat {
  std::string job;
  Generation generation;
  int rank = 0;
};

struct ExitReport {
  std::string job;
  uint64_t launcher_id = 0;
  WorkerIdentity identity;
  Incarnation incarnation;
  int exit_code = 0;
  int signal = 0;  // 0: it was not killed by one
};

struct MemberDescription {
  Member member;
  MemberState state = MemberState::kJoined;
  Progress progress;
  absl::Duration silence;  // since the last sign of life
  absl::Duration idle;     // since its progress changed
};

enum class JobState { kForming, kRunning, kEnded };
absl::string_view ToString(JobState state);

struct JobDescription {
  std::string job;
  JobState state = JobState::kForming;
  Generation generation;
  int world_size = 0;
  Plan plan;
  std::vector<MemberDescription> members;
  std::string last_event;
};

// Who is in which job. A job's life:
//
//            round closes          a member is lost or fails, or all left
//   forming --------------> running ------------------------------> ended
//      ^                                                              |
//      +-------------------------- a worker joins --------------------+
//
// Each time it runs it has a new generation number, never used before, not by
// an earlier coordinator on the same state either. What happens is decided by
// pure functions (DecideRound, DecideLiveness, AssignRanks); this class keeps
// the table and does what they say. The reason of an event is worded once, for
// the log, the description and the error.
//
// Life-cycle: Open(), AddObserver(), then requests and Tick() from any
// thread, then Shutdown(). Thread-safe. Callbacks, sinks and observers are
// called without any lock held, from whichever thread caused the event.
class Membership : public FenceGate {
 public:
  using JoinCallback = std::function<void(absl::StatusOr<JoinResult>)>;
  using EventSink = std::function<void(const AttachEvent&)>;

  // What the table stands on; all must outlive it.
  struct Rooms {
    Clock* clock = nullptr;
    RandomSource* random = nullptr;
    StateStore* store = nullptr;
    PlanRoom* plans = nullptr;
  };

  // Begins a new term on `rooms.store`.
  static absl::StatusOr<std::unique_ptr<Membership>> Open(
      const MembershipOptions& options, const Rooms& rooms);

  // Before the first request only.
  void AddObserver(GenerationObserver* observer);

  const std::string& cluster_id() const { return cluster_id_; }
  Term term() const { return term_; }

  // Calls back once, when the round is complete or the worker is refused; the
  // status codes are those of Rendezvous.Join. The result is for Withdraw().
  uint64_t Join(JoinRequest request, JoinCallback callback);
  // The worker waits no longer; its callback is dropped.
  void Withdraw(uint64_t ticket);

  // Tells `sink` everything that concerns this member from now on. Takes the
  // place of an earlier attachment of the same incarnation. The result is for
  // Heartbeat() and Detach().
  absl::StatusOr<uint64_t> Attach(const Fence& fence, EventSink sink);
  // FAILED_PRECONDITION: not attached any more.
  absl::Status Heartbeat(uint64_t attachment, const Progress& progress);
  // NOT_FOUND: not attached any more.
  absl::StatusOr<Seat> SeatOf(uint64_t attachment) const;
  // The connection was lost. Nothing if the attachment has ended already.
  void Detach(uint64_t attachment);

  absl::Status Leave(const Fence& fence, absl::string_view reason, bool failed);
  void ReportExit(const ExitReport& report);

  // For the schedule room. All of them do nothing if this generation of the
  // job does not run any more.
  //
  // Tells all that is in the list, in its order. A rank that is not attached at
  // the moment is not told: it asks again once it is.
  void Tell(absl::string_view job, Generation generation,
            const std::vector<DirectedEvent>& events);
  // Ends it with this reason and the payloads of the status.
  void AbortGeneration(absl::string_view job, Generation generation,
                       const absl::Status& reason);
  // The plan was changed while it runs.
  void NotePlan(absl::string_view job, Generation generation, const Plan& plan);
  // When something was heard of each rank, beside its heartbeats.
  void NoteSigns(absl::string_view job, Generation generation,
                 const std::vector<absl::Time>& heard);

  // By rank, also after the end, until the next generation begins; NOT_FOUND
  // then.
  absl::StatusOr<std::vector<MemberDescription>> MembersOf(
      absl::string_view job, Generation generation) const;

  absl::StatusOr<Caller> Admit(const Fence& fence) const override;
  absl::Status AdmitOperator(const Fence& fence) const override;

  // All jobs, or the one that is named; NOT_FOUND if it is not known.
  absl::StatusOr<std::vector<JobDescription>> Describe(
      absl::string_view job) const;

  // Looks at all deadlines. To be called often, compared with a lease: after
  // a longer pause everyone is given a lease from then on (see StoodStill).
  void Tick();

  // Answers everyone who waits and closes all streams with UNAVAILABLE, as it
  // does every later request. Observers are told, so that their waiters are
  // answered too.
  void Shutdown();

 private:
  struct Waiter {
    Member member;
    uint64_t launcher_id = 0;
    uint64_t ticket = 0;
    absl::Time deadline;
    JoinCallback callback;
  };
  struct MemberRecord {
    Member member;
    uint64_t launcher_id = 0;
    LivenessState liveness;
    Progress progress;
    // When it changed; at first, when the worker attached.
    std::optional<absl::Time> progressed;
    uint64_t attachment = 0;  // 0: none
    EventSink sink;
  };
  // How a round was refused whose manifests differ, for those of its workers
  // who come late or ask again.
  struct Refusal {
    absl::Status status;
    absl::Time until;
    std::set<uint64_t> launchers;
    std::set<Incarnation> incarnations;
  };
  struct Job {
    std::string name;
    JobState state = JobState::kEnded;
    std::string last_event;

    // The round, while forming; the manifests also while running.
    ManifestAgreement manifests;
    int world_size = 0;
    std::map<WorkerIdentity, Waiter> waiting;
    absl::Time last_arrival;
    absl::Time mismatch_since = absl::InfiniteFuture();  // see RoundState
    std::optional<Refusal> refusal;  // of the last round, if it ended so
    // Gave up waiting in this round: their death may be reported yet.
    std::map<Incarnation, WorkerIdentity> withdrawn;
    // Ranks of those who survived the last generation.
    std::map<WorkerIdentity, int> held;

    // The last generation, also when it has ended; 0 if there was none.
    Generation generation;
    std::vector<MemberRecord> members;  // by rank
    std::shared_ptr<const std::vector<Member>> member_list;
    Plan plan;
    absl::Time ended_at;
    bool ended_well = false;  // all members left in good order
  };
  static constexpr char kClusterTable[] = "cluster";
  static constexpr char kNextGenerationKey[] = "next_generation";

  // Calls to make once the lock is released, in order.
  using Calls = std::vector<std::function<void()>>;

  Membership(const MembershipOptions& options, const Rooms& rooms)
      : options_(options), rooms_(rooms) {}

  absl::Status BeginTerm();
  absl::Status CheckJoin(const JoinRequest& request) const;

  void WithdrawLocked(uint64_t ticket, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status JoinLocked(JoinRequest* request, JoinCallback* callback,
                          uint64_t* ticket, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing, once the running generation had to end for the newcomer; else
  // how the request is answered.
  std::optional<absl::StatusOr<JoinResult>> JoinRunningLocked(
      const JoinRequest& request, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a worker is told at once whose round has just been refused.
  absl::Status CheckRefusalLocked(const JoinRequest& request, Job* job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes sure that the worker may wait in this round.
  absl::Status EnterRoundLocked(JoinRequest* request, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Job*> FindOrAddJobLocked(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void DecideRoundLocked(Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseRoundLocked(absl::string_view reason, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static PlanTrial TrialOf(const Job& job);
  // One write, under the lock: a local database takes a millisecond. A store
  // behind a network needs the commit outside of it, with the job marked as
  // beginning meanwhile.
  absl::Status CommitGenerationLocked(Job* job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireWaitersLocked(absl::string_view reason, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Who waits, in the order of their ranks if these can be known.
  static std::vector<Member> PresentLocked(const Job& job);
  // Tells all who wait how their manifests differ.
  void RefuseRoundLocked(absl::string_view present, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After any change of who waits.
  void NoteAgreementLocked(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndRoundLocked(const absl::Status& status, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUpRoundLocked(const absl::Status& status, Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes a waiter from the round; `answer` is its result.
  void AnswerLocked(Waiter* waiter, absl::StatusOr<JoinResult> answer,
                    Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  JoinResult ResultLocked(const Job& job, int rank) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void DecideLivenessLocked(Job* job, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportExitLocked(const ExitReport& report, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoseMemberLocked(absl::string_view why, MemberRecord* record, Job* job,
                        Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndGenerationLocked(const std::string& reason,
                           const std::optional<Member>& lost, Job* job,
                           Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same with the error that everybody gets.
  void EndGenerationLocked(const absl::Status& status,
                           const std::optional<Member>& lost, Job* job,
                           Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null if that generation does not run any more.
  Job* FindRunningLocked(absl::string_view job, Generation generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotifyObserversLocked(const Job& job, const absl::Status& status,
                             Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status LeaveLocked(const Fence& fence, absl::string_view reason,
                           bool failed, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseStreamLocked(const absl::Status& status, MemberRecord* record,
                         Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status CheckWorldLocked(const Fence& fence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Cluster and term of a fence, and its job.
  absl::StatusOr<const Job*> FindFencedJobLocked(const Fence& fence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<const MemberRecord*> AdmitLocked(const Fence& fence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  MemberDescription DescribeLocked(const MemberRecord& record) const
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
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_H_
