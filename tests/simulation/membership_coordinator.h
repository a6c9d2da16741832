#ifndef COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_COORDINATOR_H_
#define COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_COORDINATOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "server/membership/job_effects.h"
#include "server/membership/job_membership.h"
#include "server/membership/membership_types.h"
#include "server/membership/run_commit.h"
#include "tests/simulation/dice.h"
#include "tests/simulation/membership_history.h"
#include "tests/simulation/membership_referee.h"
#include "tests/simulation/membership_store.h"
#include "tests/simulation/membership_timeline.h"

namespace coxswain::simulation {

// The sink of an attachment, by which it is known again in an effect.
struct StreamSink {
  using Deliver = std::function<void(int stream, const server::AttachEvent&)>;
  int stream = 0;
  const Deliver* deliver = nullptr;
  void operator()(const server::AttachEvent& event) const {
    (*deliver)(stream, event);
  }
};

// What is around a coordinator; all of it outlives it.
struct MembershipSurroundings {
  const MembershipHistory* history = nullptr;
  MembershipSabotage sabotage = MembershipSabotage::kNone;
  Timeline* timeline = nullptr;
  Dice* dice = nullptr;
  MembershipStore* store = nullptr;
  MembershipReferee* referee = nullptr;
  // Called when a spare waits for the running generation to regroup; empty: no
  // more.
  std::function<void(const std::string& reason)> on_regroup_wanted;
  // Called when members are to send this spare their state.
  std::function<void(Incarnation spare)> on_catch_up_wanted;
};

// One term of a coordinator with one job: a JobMembership, and what carries out
// its effects as server::Membership does. What follows from a change is done at
// once or a moment later, as if by another thread. It dies with this object.
class MembershipCoordinator {
 public:
  // Begins a term with what is durable.
  explicit MembershipCoordinator(const MembershipSurroundings& surroundings);

  uint64_t Join(server::JoinRequest request, server::JoinCallback callback);
  void Withdraw(uint64_t join_id);
  void Leave(Generation generation, Incarnation incarnation,
             const server::LeaveNotice& notice,
             server::StatusCallback callback);
  void ReportExit(const server::ExitReport& report,
                  server::StatusCallback callback);
  absl::StatusOr<uint64_t> Attach(Generation generation,
                                  Incarnation incarnation,
                                  const StreamSink& sink);
  // Do nothing once the attachment has ended.
  void Heartbeat(uint64_t attachment, const server::Progress& progress);
  void Detach(uint64_t attachment);
  void NotePeerBroken(uint64_t attachment, int rank);
  void NoteFallback(uint64_t attachment, const std::string& address);
  void CutOffOthers(uint64_t attachment);

  // Does nothing unless a generation runs.
  void Regroup(const std::string& reason);
  void NoteRegroup(bool decided);
  void Abort(const std::string& reason);
  void ChangePlan();
  void NoteSigns(const std::vector<Incarnation>& received);

  void Tick(bool paused);
  // Shuts down cleanly.
  void Shutdown();

  Term term() const { return coordinator_.term; }
  const server::JobMembership& machine() const { return machine_; }
  bool running() const {
    return machine_.state() == server::JobState::kRunning;
  }

 private:
  using Calls = std::vector<std::function<void()>>;
  using Change = absl::FunctionRef<void(server::JobEffects*)>;
  using ChangeByRank = absl::FunctionRef<void(int rank, server::JobEffects*)>;
  struct Carrier;
  // Where the version of the job's plan is kept.
  static constexpr char kPlanTable[] = "plan-version";

  // Makes a change, and carries out its effects.
  void ChangeJob(Change change);
  void ChangeAttached(uint64_t attachment, ChangeByRank change);
  void Run(Calls calls);
  void RunNotices();
  // Calls it if this coordinator is still there.
  std::function<void()> IfAlive(std::function<void()> call) const;
  // Returns what knows later whether all of the job could be written all along.
  std::function<bool()> Saved() const;
  void TakeUp();
  void CarryOut(server::JobEffects effects, Calls* calls);

  schedule::Plan PlanOf(int64_t version) const;
  static int StreamOf(const server::EventSink& sink);
  schedule::Plan NextPlan();
  void Give(const server::job_effect::Answer& answer);
  static void Deliver(const server::job_effect::SendMessages& send);
  void TakeDeparture(const server::job_input::DepartureWritten& written);
  void WriteGeneration(const std::shared_ptr<server::RunCommit>& commit);
  void WriteNextTable(const std::shared_ptr<server::RunCommit>& commit);
  void WritePlan(const std::shared_ptr<server::RunCommit>& commit);
  void FinishCommit(const absl::StatusOr<schedule::Plan>& plan);
  void Discard(const server::StateBatch& tables);
  absl::Time now() const { return timeline_.now(); }

  const MembershipSurroundings around_;
  Timeline& timeline_;
  Dice& dice_;
  MembershipStore& store_;
  MembershipReferee& referee_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  server::JobMembership::Coordinator coordinator_;
  int64_t next_generation_ = 1;
  uint64_t next_handle_ = 1;
  int64_t newest_plan_ = 0;
  server::JobMembership machine_;
  std::map<uint64_t, WorkerIdentity> joins_;
  std::map<uint64_t, int> attachments_;  // rank
  std::deque<std::function<void()>> notices_;
  bool noticing_ = false;
  int pending_calls_ = 0;
  int save_failures_ = 0;
  bool shut_down_ = false;
  bool sabotaged_ = false;
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_COORDINATOR_H_
