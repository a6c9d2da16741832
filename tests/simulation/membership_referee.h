#ifndef COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_REFEREE_H_
#define COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_REFEREE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "server/generation/fence.h"
#include "server/membership/job_membership.h"
#include "server/membership/membership_records.h"
#include "server/membership/membership_types.h"
#include "server/membership/run_commit.h"
#include "tests/simulation/membership_history.h"
#include "tests/simulation/membership_store.h"
#include "tests/simulation/membership_timeline.h"

namespace coxswain::simulation {

// Holds what the membership of a job does against what must hold in each
// history. Knows what came in, what went out and what is durable, and nothing
// of how the machine decides. The first thing that does not hold is kept.
class MembershipReferee {
 public:
  MembershipReferee(const MembershipHistory& history, const Timeline* timeline,
                    const MembershipStore* store)
      : history_(history), timeline_(*timeline), store_(*store) {}

  // Called when a coordinator begins its term, with what it finds.
  void OnTerm(Term term, const std::optional<server::LoadedJob>& found);
  void OnResumed(const server::GenerationResumed& resumed);
  // Called when its machine has taken up what was found.
  void OnRestored(const server::JobMembership& machine);
  // Called when it stops. Observers may still learn that members have left,
  // whose departures were being written, and of the end that follows from that.
  void OnStopping() { stopping_ = true; }
  // Called when its streams have ended, and the calls that waited for it.
  void OnStopped();

  // What comes in.
  void OnJoin(uint64_t join_id, const server::JoinRequest& request,
              bool committing);
  void AfterJoin(uint64_t join_id);
  void OnWithdraw(uint64_t join_id, bool committing);
  void OnLeave(Generation generation, Incarnation incarnation,
               const server::LeaveNotice& notice);
  // Called when the departure counts, and is durable.
  void OnDeparture(Generation generation, Incarnation incarnation,
                   const server::LeaveNotice& notice);
  void OnExit(Incarnation incarnation);
  void OnAttached(Generation generation, Incarnation incarnation, int stream);
  void OnSign(Incarnation incarnation, absl::Time at);
  // Called for a heartbeat, with how long the member has waited for others.
  void OnHeartbeat(Incarnation incarnation, absl::Duration waiting);
  void OnPeerBroken(int rank);
  void OnRegroupSent(bool regroups);
  void OnPlan(int64_t version);
  void OnAbortAsked() { abort_asked_ = true; }
  void OnFallback(absl::string_view address) {
    fallback_ = std::string(address);
  }
  // Called when all timeouts begin again: the coordinator had stalled.
  void OnTimeoutsRestarted();
  // Called when the machine has looked at all deadlines.
  void OnLooked();

  // What goes out, in the order of the effects.
  void OnChange() { ended_streams_.clear(); }
  void OnCommit(const server::RunCommit& commit);
  void OnCommitFailed();
  void OnBegan(const server::GenerationBegin& begin);
  void OnLeft(Generation generation, int rank);
  void OnRegroupWanted(Generation generation);
  void OnCatchUpWanted(Generation generation, Incarnation spare);
  void OnEnded(Generation generation, const absl::Status& status);
  void OnAnnounced(Generation generation);
  void OnAnswered(uint64_t join_id,
                  const absl::StatusOr<server::JoinResult>& result);
  void OnSent(int stream, const server::AttachEvent& event);
  void OnClosed(int stream, const absl::Status& status);
  void OnDetached(int stream);

  // What others learn, when they do.
  void OnNoticeBegan(Generation generation);
  void OnNoticeLeft(Generation generation, int rank);
  void OnNoticeEnded(Generation generation);
  void OnGiven(const server::JoinResult& result);
  void OnRegroupReceived(Generation generation);
  void OnLeaveAnswered(Generation generation, Incarnation incarnation,
                       const server::LeaveNotice& notice,
                       const absl::Status& status);
  void OnExitAnswered(Incarnation incarnation, const absl::Status& status);

  // Called when all that was to be done is done; `settled`: nothing is on its
  // way.
  void OnTick(const server::JobMembership& machine, bool settled,
              uint64_t pick);

  // Returns whether the last generation has ended since all have done their
  // work.
  bool finished() const { return finished_; }
  // Returns whether the members of the last generation were asked to regroup,
  // and may have received that.
  bool received_regroup() const {
    return last_ != nullptr && last_->received_regroup;
  }
  bool regroups() const { return last_ != nullptr && last_->regroups; }
  bool running() const { return last_ != nullptr && last_->running; }
  int64_t generations() const { return generations_; }
  int64_t losses() const { return losses_; }
  int64_t largest() const { return largest_; }

  void Violate(absl::string_view what);
  const std::string& violation() const { return violation_; }

 private:
  struct RankState {
    server::Member member;
    uint64_t launcher = 0;
    absl::Time sign;                                  // the last one
    absl::Time detached_at = absl::InfiniteFuture();  // never: it is not
    absl::Time broken_at = absl::InfinitePast();
    // The last heartbeat, and whether it reported a wait for others that makes
    // silence a stall.
    absl::Time reported = absl::InfinitePast();
    bool waits = false;
    bool left = false;      // its departure was noticed
    bool for_good = false;  // and it does not come back
    bool failed = false;
    bool lost = false;
    bool exited = false;    // its launcher has reported so
    bool replaced = false;  // by another process of its launcher
    bool survives() const { return !for_good && !lost && !exited && !replaced; }
  };
  struct Run {
    Generation generation;
    std::vector<RankState> ranks;  // by rank
    std::map<Incarnation, size_t> by_incarnation;
    bool running = false;
    bool noticed = false;    // by the observers of this term
    bool announced = false;  // all that asked meanwhile are answered
    bool regroups = false;
    bool received_regroup = false;
    bool resumed = false;  // it began in an earlier term
    std::set<int64_t> plans;
    absl::Time began;  // in this term
    absl::Time first_left = absl::InfiniteFuture();
    absl::Time ended_at;
    // When it ended by the loss of one that was stalled; never: it did not.
    absl::Time stalled_at = absl::InfinitePast();
    std::shared_ptr<const std::vector<server::Member>> list;  // as answered
    std::optional<server::JoinResult> answer;                 // the first one

    RankState* Find(Incarnation incarnation);
  };
  struct PendingJoin {
    WorkerIdentity identity;
    Incarnation incarnation;
    uint64_t launcher = 0;
    absl::Time at;
    bool withdrawn = false;
    bool removed = false;  // withdrawn while nothing had to wait for a commit
    bool must_finish = false;
  };
  struct Promise {  // what was answered with OK
    Generation generation;
    bool rejoins = true;
  };

  Run* Find(Generation generation);
  RankState* FindRank(Generation generation, Incarnation incarnation);
  void TakeUp(const server::LoadedJob& found);
  // Its members may come back from now on.
  void EndRun(const std::optional<server::Member>& lost);
  void CheckMembers(const server::RunCommit& commit);
  void CheckRanks(const Run& next);
  void CheckSurvivors(const Run& next);
  void CheckAnswer(const PendingJoin& join_id,
                   const server::JoinResult& result);
  void CheckLoss(const server::Member& lost);
  // Of several that are stalled, the first one ends the generation.
  void NoteAlsoLost(const server::JobMembership& machine);
  void CheckPromises(const server::LoadedJob& found);
  void CheckWaiting(const server::JobMembership& machine);
  // No time passes between the return of the last survivor, or the report of
  // the last one that does not return, and the next generation.
  void CheckNoDelay(const server::JobMembership& machine);
  void CheckDeadlines();
  void CheckFence(const server::JobMembership& machine, uint64_t pick);
  void LookUpPromises();
  bool JustLost(const Run& run, const RankState& state) const;
  // Returns whether this member of a generation that runs may be lost because
  // it gives no sign of life while all others wait, or are as silent. Of one
  // that joins the next generation it does not matter since when.
  bool Stalls(const Run& run, const RankState& state) const;
  // Returns whether others may go on without this survivor of the last
  // generation, since it gives no sign of life: as docs/failure-model.md has
  // it, and "Stopped workers" of docs/elastic.md.
  bool StallsRound(const RankState& state) const;
  // Returns since when silence counts: before, the coordinator stood still.
  absl::Time LookedSince() const;
  bool IsDurable(Generation generation);
  absl::Time now() const { return timeline_.now(); }

  const MembershipHistory& history_;
  const Timeline& timeline_;
  const MembershipStore& store_;

  Term term_;
  bool stopping_ = false;
  std::map<Generation, Run> runs_;
  Run* last_ = nullptr;  // the last that began
  std::optional<Run> committing_;
  bool finished_ = false;
  bool abort_asked_ = false;
  std::map<uint64_t, PendingJoin> joins_;                 // not answered
  std::map<int, Incarnation> streams_;                    // open ones
  std::map<int, std::optional<server::Member>> aborted_;  // the abort's member
  std::vector<int> ended_streams_;       // closed by this change, with an error
  std::map<Incarnation, Promise> left_;  // departures that were answered
  std::set<Incarnation> dead_;           // exits that were answered
  absl::Time last_change_;               // of what waiting workers wait for
  // The last look of this term, and since when there was none too many.
  absl::Time looked_at_ = absl::InfinitePast();
  absl::Time looked_since_ = absl::InfinitePast();
  int64_t promises_ = 0;
  Generation durable_;  // the highest that is known to be
  std::string fallback_;

  // What the observers of this term know.
  Generation noticed_;  // that runs
  Generation noticed_last_;
  std::set<int> noticed_left_;

  int64_t generations_ = 0;
  int64_t losses_ = 0;
  int64_t largest_ = 0;
  std::string violation_;
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_REFEREE_H_
