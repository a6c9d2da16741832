#ifndef COXSWAIN_TESTS_SIMULATION_WORLD_H_
#define COXSWAIN_TESTS_SIMULATION_WORLD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/reduce/step_gate.h"
#include "server/schedule/step_agreement.h"
#include "tests/simulation/dice.h"
#include "tests/simulation/history.h"
#include "tests/simulation/referee.h"
#include "tests/simulation/worker.h"

namespace coxswain::simulation {

// What the wire does to the messages of rank 0, to see that the referee finds
// the consequences.
enum class Sabotage {
  kNone,
  kFlipsCommit,      // its decisions say the opposite
  kRelabelsRounds,   // a decision is taken for that of the present round
  kDelaysPlans,      // plans come with the decision after theirs
  kDecidesAlone,     // it is answered before the others have said anything
  kSwallowsAnswers,  // it hears nothing
};

// One history: the real StepAgreement and a real StepAgent for each rank, on a
// link that loses, repeats and reorders what they say, under a clock that jumps
// from one event to the next.
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
    kLeft,
    kBreak,
    kMend,
    kServerTick,
    kStallCheck,
    kPropose,
    kRequestStop,
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
    std::optional<server::Ticket> ticket;
    std::optional<server::Vote> vote;
  };
  struct ToRank {
    int connection = 0;
    bool grant = false;
    int64_t round = 0;
    std::shared_ptr<const StepDecision> decision;
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
  void Deviate(Worker* worker, StepTicket* ticket);
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
  void SendUp(const Worker& worker, const StepAgent::Outgoing& outgoing);
  void SendForged(const Worker& worker, const StepTicket& ticket, int64_t round,
                  absl::Duration delay);
  void SendDown(int rank, ToRank message);
  void OnToServer(const Event& event);
  void OnToRank(const Event& event);

  // The coordinator.
  void Say(const server::StepAgreement::Messages& messages);
  void AfterAgreement();
  void Fail(const absl::Status& failure);
  void CheckStall();
  void Propose(const Proposal& proposal);
  std::optional<server::Plan> NextPlan(int64_t step);

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

  server::StepAgreement agreement_;
  server::Plan round_plan_;  // that the present round is measured by
  int64_t newest_plan_ = 1;
  std::vector<server::Plan> pending_;
  absl::Time server_tick_ = absl::InfiniteFuture();
  bool failed_ = false;
  bool stopped_ = false;
  std::vector<bool> left_;
  std::optional<JobPlan> withheld_plan_;
  Referee referee_;
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_WORLD_H_
