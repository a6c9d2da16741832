// The world's part that carries messages.
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "schedule/step_agent.h"
#include "tests/simulation/world.h"

namespace coxswain::simulation {
absl::Duration World::Delay() {
  return dice_.Between(history_.link.fastest, history_.link.slowest);
}

int World::Copies() {
  if (dice_.Chance(history_.link.loss)) return 0;
  return dice_.Chance(history_.link.duplicates) ? dice_.Int(2, 3) : 1;
}

void World::SendUp(const Worker& worker,
                   const schedule::StepAgent::Outgoing& outgoing) {
  const int copies = worker.connected ? Copies() : 0;
  if (copies == 0) return;
  ToServer& message = to_server_.emplace_back();
  message.connection = worker.connection;
  message.coordinator = worker.coordinator;
  if (std::holds_alternative<schedule::Ticket>(outgoing)) {
    message.ticket = std::get<schedule::Ticket>(outgoing);
    if (sabotage_ == Sabotage::kHidesPipelines) message.ticket->pipeline = 0;
  } else {
    message.vote = std::get<schedule::Vote>(outgoing);
  }
  for (int i = 0; i < copies; ++i) {
    At(Delay(), Kind::kToServer, worker.rank, to_server_.size() - 1);
  }
}

void World::SendForged(const Worker& worker, const schedule::Ticket& ticket,
                       int64_t round, absl::Duration delay) {
  ToServer& message = to_server_.emplace_back();
  message.connection = worker.connection;
  message.coordinator = worker.coordinator;
  message.ticket = ticket;
  message.ticket->round = round;
  At(delay, Kind::kToServer, worker.rank, to_server_.size() - 1);
}

void World::OnToServer(const Event& event) {
  const ToServer& message = to_server_[event.payload];
  // What was under way when a connection broke may or may not arrive.
  if (message.connection != Rank(event.rank).connection && dice_.Chance(0.5)) {
    return;
  }
  if (Idle() || message.coordinator != coordinator_) return;
  if (message.position.has_value())
    ReceivePosition(event.rank, *message.position);
  if (message.ticket.has_value()) {
    referee_.OnTicketReceived(event.rank, *message.ticket);
    if (sabotage_ == Sabotage::kDecidesAlone && event.rank == 0) {
      auto alone = std::make_shared<schedule::Decision>();
      alone->round = message.ticket->round;
      SendDown(0, {0, 0, false, message.ticket->round, std::move(alone)});
    }
    SendMessages(agreement().OnTicket(event.rank, *message.ticket, now_));
  }
  if (message.vote.has_value()) {
    referee_.OnVoteReceived(event.rank, *message.vote);
    SendMessages(agreement().OnVote(event.rank, *message.vote, now_));
  }
  AfterAgreement();
}

void World::SendDown(int rank, ToRank message) {
  const Worker& worker = Rank(rank);
  const int copies = worker.connected && worker.SessionRuns() ? Copies() : 0;
  if (copies == 0) return;
  message.connection = worker.connection;
  message.coordinator = coordinator_;
  to_rank_.push_back(std::move(message));
  for (int i = 0; i < copies; ++i) {
    At(Delay(), Kind::kToRank, rank, to_rank_.size() - 1);
  }
}

void World::OnToRank(const Event& event) {
  Worker* worker = &Rank(event.rank);
  const ToRank& message = to_rank_[event.payload];
  if (!worker->connected || !worker->SessionRuns()) return;
  // The stream from an earlier coordinator has ended.
  if (message.coordinator != worker->coordinator) return;
  if (message.connection != worker->connection && dice_.Chance(0.5)) return;
  const bool sabotaged = event.rank == 0;
  if (sabotaged && sabotage_ == Sabotage::kSwallowsAnswers) return;
  if (message.grant) {
    worker->agent.OnGrant(message.round);
  } else {
    schedule::Decision decision = *message.decision;
    if (sabotaged && sabotage_ == Sabotage::kFlipsCommit) {
      decision.commit = !decision.commit;
    }
    if (sabotaged && sabotage_ == Sabotage::kHidesCheckpoints) {
      decision.checkpoint.clear();
    }
    if (sabotaged && sabotage_ == Sabotage::kRelabelsRounds) {
      decision.round = worker->agent.round();
    }
    if (sabotaged && sabotage_ == Sabotage::kDelaysPlans) {
      if (decision.plan.has_value()) withheld_plan_ = decision.plan;
      decision.plan.reset();
      if (withheld_plan_.has_value() && !message.decision->plan.has_value()) {
        decision.plan = withheld_plan_;
      }
    }
    worker->agent.OnDecision(decision);
    if (worker->agent.decided() && worker->agent.round() == decision.round) {
      referee_.OnReceived(decision.round);
    }
  }
  BeginExchange(worker);
  Act(worker);
}

}  // namespace coxswain::simulation
