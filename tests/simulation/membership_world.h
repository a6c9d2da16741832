#ifndef COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_WORLD_H_
#define COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_WORLD_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "schedule/ticket.h"
#include "server/membership/membership_types.h"
#include "tests/simulation/dice.h"
#include "tests/simulation/membership_coordinator.h"
#include "tests/simulation/membership_history.h"
#include "tests/simulation/membership_referee.h"
#include "tests/simulation/membership_store.h"
#include "tests/simulation/membership_timeline.h"

namespace coxswain::simulation {

// One history of one job: the real JobMembership of each term on what the term
// before has made durable, among simulated workers, their launchers, and the
// network between them.
//
// First there are troubles: processes die, stall and are restarted, messages
// are lost, repeated and late, streams break, writes fail, the coordinator
// dies, stops or stalls, generations regroup or are aborted. Then everything
// works, and after a time that the options bound each worker must be in a
// generation, or wait for a place in it. Last, all leave for good, and every
// process that is restarted must find the job done.
class MembershipWorld {
 public:
  explicit MembershipWorld(
      const MembershipHistory& history,
      MembershipSabotage sabotage = MembershipSabotage::kNone);

  struct Result {
    std::string violation;  // empty: everything held
    int64_t generations = 0;
    int64_t losses = 0;
    int64_t crashes = 0;
    int64_t stops = 0;
    int64_t regroups = 0;
    int64_t processes = 0;
    int64_t finished = 0;
    int64_t events = 0;
  };
  Result Run();

 private:
  enum class Phase { kTroubles, kCalm, kAllLeave, kEpilogue };
  enum class Trouble {
    kKill,
    kStall,
    kBreakStream,
    kBreakAll,
    kCrash,
    kStop,
    kStandStill,
    kFailWrites,
    kRegroup,
    kDrain,
    kFail,
    kGiveUp,
    kAbort,
    kAccuse,
    kCutOff,
    kPlan,
    kNewLauncher,
  };
  static constexpr int kTroubles = static_cast<int>(Trouble::kNewLauncher) + 1;

  // A worker process.
  struct Process {
    enum class State {
      kStarting,
      kAsking,   // for a generation
      kMember,   // of one, as far as it knows
      kLeaving,  // waits for the answer
      kDone,     // it has ended of its own accord
      kDead,
    };
    int number = 0;
    int place = 0;
    Incarnation incarnation;
    uint64_t launcher = 0;
    State state = State::kStarting;
    int calls = 0;  // that it has made; answers to earlier ones are dropped
    uint64_t join_id = 0;  // of its last Join, in this term
    Term join_term;
    Generation generation;  // the last one it was in
    int rank = 0;
    int stream = 0;  // 0: none
    int64_t step = 0;
    absl::Time stalled_until;
    bool for_good = false;  // it is drained
    server::LeaveNotice notice;

    std::string address() const;

    bool ended() const {
      return state == State::kDone || state == State::kDead;
    }
  };
  struct Place {
    WorkerIdentity identity;
    Process* process = nullptr;  // the one that counts
    std::vector<Process*> processes;
    int starting = 0;
  };
  // The Attach stream of a process, as both ends see it.
  struct Stream {
    Process* process = nullptr;
    Generation generation;
    Term term;
    uint64_t attachment = 0;  // 0: none
    bool broken = false;
    bool ended = false;  // the worker has received its end
    bool aborted = false;
    absl::Time last_event;  // that is on its way to the worker
  };
  void In(absl::Duration delay, std::function<void()> event) {
    timeline_.In(delay, std::move(event));
  }
  absl::Time now() const { return timeline_.now(); }
  absl::Duration Delay();
  absl::Duration Pause();  // before something is tried again
  // Runs until this holds, at most so long; a violation if it never does.
  void RunUntil(absl::Duration longest, const std::function<bool()>& holds,
                const std::string& what);

  // membership_world.cc: phases, troubles, and the coordinator's life.
  void ScheduleTroubles();
  void Make(Trouble trouble);
  void CalmDown();
  // Starts workers where there are none.
  void Refill();
  void LetAllLeave();
  void StartAgain();
  bool IsSettled() const;
  bool IsOver() const;
  absl::Duration Longest() const;
  void StartCoordinator();
  void StopCoordinator(bool crash);
  void GoDown();
  void Tick();
  void Regroup(const std::string& reason);
  Process* PickProcess(Process::State state);
  Process* PickMember();

  // membership_world_processes.cc: workers, their launchers, and the network.
  //
  // Brings it to the coordinator; fails if that is not there.
  void ToCoordinator(std::function<void()> bring, std::function<void()> fail);
  void BringNow(const std::function<void()>& bring,
                const std::function<void()>& fail);
  // Sends a call, which may be lost or repeated; the answer of a lost call is
  // lost.
  void Send(const std::function<void(bool received)>& bring,
            const std::function<void()>& again);
  void StartLater(int place, uint64_t launcher, absl::Duration delay);
  void Start(int place, uint64_t launcher);
  void Kill(Process* process);
  void End(Process* process);  // with an error
  void Replace(const Process& process);
  void Forget(const Process& process);
  void WithdrawLater(uint64_t join_id, Term term);
  void ReportExit(const Process& process);
  void SendReport(const server::ExitReport& report,
                  const std::shared_ptr<bool>& known);
  void Ask(Process* process);
  void AskLater(Process* process, int call);
  void BringJoin(Process* process, int call, const server::JoinRequest& request,
                 bool received);
  void OnAnswer(Process* process, int call,
                const absl::StatusOr<server::JoinResult>& result);
  void OnRefused(Process* process, const absl::Status& status);
  void Leave(Process* process, bool failed, bool rejoin);
  void SendLeave(Process* process);
  void LeaveAgain(Process* process, int call);
  void OnLeft(Process* process, int call, const absl::Status& status);
  void MakeWay(Process* process, Generation generation);
  void GoOn(Process* process, Generation generation);
  // Returns whether it is not stalled.
  bool Acts(const Process& process) const;

  // membership_world_streams.cc: attachments.
  void Attach(Process* process);
  void AttachAgain(int stream);
  void BringAttach(int stream);
  void OnAttachRefused(int stream, const absl::Status& status);
  void DetachLater(int stream);
  void Beat(int stream);
  void BringBeat(int stream);
  // Of a member whose generation has ended, until its Join is answered.
  void ShowLife(int stream);
  void BringSignOfLife(int stream);
  void Break(int stream);
  void Deliver(int stream, const server::AttachEvent& event);
  void OnEvent(int stream, const server::AttachEvent& event);
  Stream& StreamOf(int stream) { return streams_[static_cast<size_t>(stream)]; }

  const MembershipHistory history_;
  const MembershipSabotage sabotage_;
  Dice dice_;
  Timeline timeline_;
  MembershipStore store_;
  MembershipReferee referee_;
  const StreamSink::Deliver deliver_;
  Phase phase_ = Phase::kTroubles;
  std::unique_ptr<MembershipCoordinator> coordinator_;  // null: it is down
  bool stopping_ = false;
  absl::Time stands_still_until_;
  absl::Time last_tick_;
  int ticks_ = 0;  // which loop of them
  std::deque<Process> processes_;
  std::vector<Place> places_;
  std::deque<Stream> streams_;  // by number
  uint64_t launchers_ = 1;
  bool regroup_asked_ = false;
  // Spares that members send their state, the last ones: each heartbeat may
  // report that they have it.
  static constexpr size_t kMaxReports = 2 * schedule::kMaxNewcomers;
  std::deque<Incarnation> catching_up_;
  double lost_ = 0;
  double doubled_ = 0;
  Result counts_;
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_WORLD_H_
