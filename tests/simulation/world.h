#ifndef COXSWAIN_TESTS_SIMULATION_WORLD_H_
#define COXSWAIN_TESTS_SIMULATION_WORLD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "schedule/plan.h"
#include "schedule/step_agent.h"
#include "schedule/step_agreement.h"
#include "schedule/step_gate.h"
#include "schedule/ticket.h"
#include "tests/simulation/dice.h"
#include "tests/simulation/history.h"
#include "tests/simulation/referee.h"
#include "tests/simulation/worker.h"

namespace coxswain::simulation {

// What the wire does to the messages of rank 0, or the coordinator to its
// memory, to see that the referee finds the consequences.
enum class Sabotage {
  kNone,
  kFlipsCommit,       // its decisions are inverted
  kRelabelsRounds,    // a decision is taken for that of the present round
  kDelaysPlans,       // plans come with the decision after theirs
  kDecidesAlone,      // it is answered before the others have sent anything
  kSwallowsAnswers,   // it receives nothing
  kHidesPositions,    // a coordinator that was restarted receives none
  kForgetsLast,       // a crash loses also what was written
  kForgetsPlan,       // the plan before the one in force is not kept
  kHidesCheckpoints,  // its decisions ask for none
  kForgetsMesh,       // the coordinator does not know which ranks are alike
  kHidesPipelines,    // tickets arrive without the schedules of pipelines
};

// One history: the real StepAgreement and a real StepAgent for each rank, on a
// link that loses, repeats and reorders messages, under a clock that jumps from
// one event to the next. The coordinator may die: it loses what it knew but
// what was written, and what was on its way. Writes that no call waits for are
// lost from some point on.
class World {
 public:
  explicit World(const History& history, Sabotage sabotage = Sabotage::kNone);

  struct Result {
    std::string violation;  // empty: everything held
    bool deviated = false;  // a rank came to do what it should not
    absl::Status failure;   // of the agreement
    int64_t rounds = 0;     // decided
    int64_t skips = 0;
    int64_t plan_changes = 0;
    int64_t stops = 0;
    int64_t regroups = 0;
    int64_t checkpoints = 0;
    int64_t crashes = 0;
    int64_t made_again = 0;       // decisions that a crash took with it
    int64_t known_by_a_rank = 0;  // that only a rank still knew
    int64_t plans_late = 0;       // in force at a crash, and known after it
    int64_t events = 0;
  };
  Result Run();

 private:
  enum class Kind {
    kComputed,
    kExchanged,
    kWake,
    kToServer,
    kToRank,
    kAbort,
    kBreak,
    kMend,
    kServerTick,
    kStallCheck,
    kPropose,
    kRequestStop,
    kRegroup,
    kWantCheckpoint,
    kPosition,
    kLeave,
    kCommit,
    kCrash,
    kRestart,
    kReturn,
    kGraceOver,
  };
  struct Event {
    absl::Time at;
    uint64_t order = 0;
    Kind kind = Kind::kWake;
    int rank = 0;
    size_t payload = 0;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  struct ToServer {
    int connection = 0;
    int coordinator = 0;
    std::optional<schedule::Decision> position;
    std::optional<schedule::Ticket> ticket;
    std::optional<schedule::Vote> vote;
  };
  struct ToRank {
    int connection = 0;
    int coordinator = 0;
    bool grant = false;
    int64_t round = 0;
    std::shared_ptr<const schedule::Decision> decision;
  };
  // What the coordinator writes without waiting: one of them.
  struct Write {
    std::optional<schedule::Decision> position;
    int left = -1;
  };
  // What outlives it.
  struct Durable {
    std::optional<schedule::Decision> position;
    std::vector<bool> left;
    schedule::Plan plan;
    std::optional<schedule::Plan> plan_before;
    int plan_since = 0;  // which coordinator brought it into force
    std::vector<schedule::Plan> pending;
  };
  struct Exchange {
    int begun = 0;
    int done = 0;  // ranks whose data ends with it
  };

  void At(absl::Duration delay, Kind kind, int rank = 0, size_t payload = 0);
  void Schedule();
  void Handle(const Event& event);
  Worker& Rank(int rank) { return workers_[static_cast<size_t>(rank)]; }
  bool Over() const;

  // A rank's loop.
  void Compute(Worker* worker);
  void OnComputed(Worker* worker);
  void Deviate(Worker* worker, schedule::Ticket* ticket);
  bool Deviates(const Worker& worker, Deviation deviation) const;
  void Stick(Worker* worker);
  void GoOn(Worker* worker);
  void BeginExchange(Worker* worker);
  void OnExchanged(Worker* worker);
  void Act(Worker* worker);
  void Leave(Worker* worker);
  void OnWake(Worker* worker);
  void Pump(Worker* worker);
  void EndWait(Worker* worker);

  // The link.
  absl::Duration Delay();
  int Copies();
  void SendUp(const Worker& worker,
              const schedule::StepAgent::Outgoing& outgoing);
  void SendForged(const Worker& worker, const schedule::Ticket& ticket,
                  int64_t round, absl::Duration delay);
  void SendDown(int rank, ToRank message);
  void OnToServer(const Event& event);
  void OnToRank(const Event& event);

  // The ends of the link: the rank connects to this coordinator or to another.
  void Reattach(Worker* worker);
  void SendPosition(Worker* worker);
  void ReceivePosition(int rank, const schedule::Decision& received);

  // The coordinator's life.
  void Die(const Crash& crash);
  void CrashWith(const schedule::Decision& decision);
  void Restart();
  void MakeAgreement(bool resumed);
  void AfterGrace();
  void WriteLater(Write write);
  void Commit(uint64_t up_to);
  void Keep(const Worker& worker);
  schedule::Decision ToServerDecision(const schedule::Decision& received) const;
  void OnLeave(int rank);

  // The coordinator.
  schedule::StepAgreement& agreement() { return *agreement_; }
  bool Idle() const { return failed_ || agreement_ == nullptr; }
  void WantRegroup(const Regroup& regroup);
  void WantCheckpoint(const CheckpointRequest& request);
  void SendMessages(const schedule::StepAgreement::Messages& messages);
  void NoteDecided(const schedule::Decision& decision);
  void AfterAgreement();
  void Fail(const absl::Status& failure);
  void CheckStall();
  void Propose(const Proposal& proposal);
  std::optional<schedule::Plan> NextPlan(int64_t step);

  const History history_;
  const Sabotage sabotage_;
  Dice dice_;
  absl::Time now_ = absl::UnixEpoch();
  absl::Time last_progress_ = now_;
  std::priority_queue<Event> events_;
  uint64_t order_ = 0;
  int64_t handled_ = 0;
  std::vector<ToServer> to_server_;
  std::vector<ToRank> to_rank_;

  std::vector<Worker> workers_;
  std::vector<Exchange> exchanges_;

  std::unique_ptr<schedule::StepAgreement> agreement_;  // null: it is down
  int coordinator_ = 0;
  std::vector<bool> absent_;  // not back since the last restart
  Durable durable_;
  std::vector<bool> crashed_;  // by crash of the history: it was begun
  std::deque<Write> writes_;   // not durable yet
  uint64_t written_ = 0;       // of all that were ever queued
  int64_t kept_round_ = -1;    // the highest that was queued of them
  Result counts_;
  std::map<int64_t, schedule::Plan> plans_;  // by version
  int64_t newest_plan_ = 1;
  absl::Time server_tick_ = absl::InfiniteFuture();
  bool failed_ = false;
  bool stopped_ = false;
  std::vector<bool> left_;
  std::optional<schedule::Plan> withheld_plan_;
  Referee referee_;
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_WORLD_H_
