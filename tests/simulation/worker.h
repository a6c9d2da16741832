#ifndef COXSWAIN_TESTS_SIMULATION_WORKER_H_
#define COXSWAIN_TESTS_SIMULATION_WORKER_H_

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/time/time.h"
#include "schedule/plan.h"
#include "schedule/step_agent.h"
#include "schedule/step_gate.h"
#include "schedule/ticket.h"
#include "tests/simulation/history.h"

namespace coxswain::simulation {

// Returns the decision without what is not sent.
schedule::Decision AsSent(schedule::Decision decision);

// One rank: a training loop around the real StepAgent. The world, which owns
// the time, drives it.
struct Worker {
  enum class Phase {
    kComputing,
    kAwaitingGrant,
    kExchanging,
    kAwaitingDecision,
    kStuck,  // deviated, and does nothing more
    kLeft,
    kStopped,  // by an abort, or because its timeout was over
  };

  Worker(const History& history, int rank);

  // Returns the ticket of the exchange that comes next, as an honest rank makes
  // it.
  schedule::Ticket NextTicket() const;
  // Advances past the exchange of that ticket.
  void Advance();
  // Returns whether the program ends, by what this rank alone knows.
  bool AtEnd() const;
  bool OutOfData() const { return data == 0; }
  bool AtGate() const {
    return phase == Phase::kAwaitingGrant || phase == Phase::kAwaitingDecision;
  }
  bool Ended() const {
    return phase == Phase::kStuck || phase == Phase::kLeft ||
           phase == Phase::kStopped;
  }
  // Returns whether its session still sends and receives, which it does on its
  // own threads.
  bool SessionRuns() const {
    return !frozen && phase != Phase::kLeft && phase != Phase::kStopped;
  }

  const History* history;
  int rank;
  schedule::StepAgent agent;
  schedule::Plan plan;
  Phase phase = Phase::kComputing;

  int64_t step = 0;
  int micro = 0;                               // with sync_each_batch
  int window = 0;                              // that the step began with
  int data = std::numeric_limits<int>::max();  // micro-batches left
  int64_t exchanges = 0;                       // begun
  int64_t exchange_round = 0;
  bool all_done = false;  // as the last exchange returned

  bool connected = true;
  int connection = 0;
  int coordinator = 0;     // that it is or was connected to
  absl::Time returned_at;  // to this one
  bool departed = false;   // the coordinator has confirmed that it left
  absl::Time waiting_since;
  absl::Time progressed;
  absl::Time next_wake = absl::InfiniteFuture();
  bool deviated = false;
  bool frozen = false;  // the whole process is suspended
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_WORKER_H_
