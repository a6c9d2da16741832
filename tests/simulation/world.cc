#include "tests/simulation/world.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/schedule/stall.h"

namespace coxswain::simulation {
namespace {

using Phase = Worker::Phase;

constexpr absl::Duration kTickLateness = absl::Milliseconds(100);

}  // namespace

World::World(const History& history, Sabotage sabotage)
    : history_(history),
      sabotage_(sabotage),
      dice_(history.seed, 2),
      agreement_([&] {
        server::StepAgreement::Options options;
        options.stream = "train";
        options.world_size = history.world_size;
        options.plan = history.plan;
        options.next_plan = [this](int64_t step) { return NextPlan(step); };
        return options;
      }()),
      round_plan_(history.plan),
      left_(static_cast<size_t>(history.world_size), false),
      referee_(history_) {
  for (int rank = 0; rank < history_.world_size; ++rank) {
    workers_.emplace_back(history_, rank);
  }
}

void World::At(absl::Duration delay, Kind kind, int rank, size_t payload) {
  events_.push({now_ + delay, order_++, kind, rank, payload});
}

World::Result World::Run() {
  for (Worker& worker : workers_) {
    worker.progressed = now_;
    Compute(&worker);
  }
  Schedule();
  while (!events_.empty() && !Over()) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.at;
    ++handled_;
    Handle(event);
  }
  Referee::Ending ending;
  for (const Worker& worker : workers_) {
    if (worker.phase == Phase::kLeft) ++ending.left;
    if (worker.AtGate()) ++ending.at_gate;
  }
  referee_.OnEnd(ending);
  Result result;
  result.violation = referee_.violation();
  result.deviated = referee_.deviated();
  result.failure = referee_.failure();
  result.rounds = referee_.decided();
  for (const Referee::Decided& round : referee_.rounds()) {
    if (!round.commit) ++result.skips;
    if (!round.stop.empty()) ++result.stops;
    if (round.plan_version > 0) ++result.plan_changes;
  }
  result.events = handled_;
  return result;
}

// What comes from outside of the ranks.
void World::Schedule() {
  const absl::Duration about =
      history_.slowest_step * history_.steps + absl::Milliseconds(1);
  for (size_t i = 0; i < history_.proposals.size(); ++i) {
    At(history_.proposals[i].after, Kind::kPropose, 0, i);
  }
  for (int i = 0; i < history_.stops_requested; ++i) {
    At(dice_.Between(absl::ZeroDuration(), about), Kind::kRequestStop,
       dice_.Int(0, history_.world_size - 1));
  }
  for (int i = 0; i < history_.link.reconnects; ++i) {
    At(dice_.Between(absl::ZeroDuration(), about), Kind::kBreak,
       dice_.Int(0, history_.world_size - 1));
  }
  At(history_.plan.terms.progress_timeout / 2, Kind::kStallCheck);
}

bool World::Over() const {
  if (!referee_.violation().empty()) return true;
  // Longer than any wait.
  if (now_ - last_progress_ >
      PatienceOf(history_.plan.terms) + absl::Minutes(1)) {
    return true;
  }
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.Ended(); }) &&
         (failed_ || std::none_of(workers_.begin(), workers_.end(),
                                  [](const Worker& worker) {
                                    return worker.phase == Phase::kStuck;
                                  }));
}

void World::Handle(const Event& event) {
  Worker* worker = &Rank(event.rank);
  switch (event.kind) {
    case Kind::kComputed:
      return OnComputed(worker);
    case Kind::kExchanged:
      return OnExchanged(worker);
    case Kind::kWake:
      return OnWake(worker);
    case Kind::kToServer:
      return OnToServer(event);
    case Kind::kToRank:
      return OnToRank(event);
    case Kind::kAbort:
      if (!worker->connected)
        return At(kTickLateness, Kind::kAbort, event.rank);
      EndWait(worker);
      if (!worker->Ended()) worker->phase = Phase::kStopped;
      return;
    case Kind::kLeft:
      left_[static_cast<size_t>(event.rank)] = true;
      if (failed_) return;
      Say(agreement_.OnMemberLeft(event.rank, now_));
      return AfterAgreement();
    case Kind::kBreak:
      if (!worker->connected) return;
      worker->connected = false;
      ++worker->connection;
      return At(
          dice_.Between(absl::ZeroDuration(), history_.link.longest_break),
          Kind::kMend, event.rank);
    case Kind::kMend:
      worker->connected = true;
      worker->agent.OnConnected();
      return Pump(worker);
    case Kind::kServerTick:
      server_tick_ = absl::InfiniteFuture();
      if (failed_) return;
      Say(agreement_.Tick(now_));
      if (agreement_.deadline() <= now_) {
        return referee_.Violate("the agreement did nothing at its deadline");
      }
      return AfterAgreement();
    case Kind::kStallCheck:
      return CheckStall();
    case Kind::kPropose:
      return Propose(history_.proposals[event.payload]);
    case Kind::kRequestStop:
      return worker->agent.RequestStop("preempted");
  }
}

void World::Say(const server::StepAgreement::Messages& messages) {
  using Message = server::StepAgreement::Message;
  for (const Message& message : messages) {
    const bool all = message.rank == Message::kAllRanks;
    if (message.kind == Message::Kind::kWarning) {
      referee_.OnWarned(message.text);
      continue;
    }
    ToRank down;
    down.grant = message.kind == Message::Kind::kGrant;
    down.round = message.round;
    if (down.grant) {
      referee_.OnGranted(message.round);
    } else {
      const server::StepDecision& decided = message.decision;
      if (all) {
        referee_.OnDecided(decided, round_plan_);
        if (decided.plan.has_value()) round_plan_ = *decided.plan;
        if (!decided.stop.empty()) stopped_ = true;
      }
      auto decision = std::make_shared<StepDecision>();
      decision->commit = decided.commit;
      decision->reason = Referee::Tag(decided);
      decision->stop = decided.stop;
      if (decided.plan.has_value()) decision->plan = ToJobPlan(*decided.plan);
      down.decision = std::move(decision);
    }
    if (!all) {
      SendDown(message.rank, std::move(down));
      continue;
    }
    for (int rank = 0; rank < history_.world_size; ++rank) SendDown(rank, down);
  }
}

void World::AfterAgreement() {
  if (failed_) return;
  if (!agreement_.failure().ok()) return Fail(agreement_.failure());
  const absl::Time deadline = agreement_.deadline();
  if (deadline >= server_tick_) return;
  server_tick_ = deadline + dice_.Between(absl::ZeroDuration(), kTickLateness);
  At(std::max(server_tick_ - now_, absl::ZeroDuration()), Kind::kServerTick);
}

void World::Fail(const absl::Status& failure) {
  failed_ = true;
  referee_.OnFailed(failure);
  for (int rank = 0; rank < history_.world_size; ++rank) {
    At(Delay(), Kind::kAbort, rank);
  }
}

// As the schedule room does, with heartbeats that are never late.
void World::CheckStall() {
  const absl::Duration timeout = history_.plan.terms.progress_timeout;
  At(timeout / 2, Kind::kStallCheck);
  if (failed_) return;
  server::StallInput input;
  input.progress_timeout = timeout;
  input.stopped = stopped_;
  for (const Worker& worker : workers_) {
    server::RankActivity& rank = input.ranks.emplace_back();
    rank.live = !left_[static_cast<size_t>(worker.rank)];
    rank.collective_sequence = worker.exchanges;
    rank.progressed = worker.progressed;
    rank.heard = now_;
    const auto& last =
        agreement_.last_tickets()[static_cast<size_t>(worker.rank)];
    if (!last.has_value()) continue;
    rank.ticket.emplace();
    rank.ticket->stream = "train";
    rank.ticket->round = last->ticket.round;
    rank.ticket->step = last->ticket.step;
    rank.ticket->at = last->at;
    rank.ticket->decided = last->decided;
    rank.rounds = last->ticket.round + 1;
  }
  // Those are the agreement's own.
  if (!agreement_.Missing().empty()) return;
  const server::StallReport report = server::FindStall(now_, input);
  if (!report.stalled) return;
  if (history_.plan.terms.on_stall == OnStall::kAbort) {
    Fail(report.error);
  } else {
    referee_.OnWarned(report.findings[0]);
  }
}

void World::Propose(const Proposal& proposal) {
  server::Plan plan = round_plan_;
  plan.version = ++newest_plan_;
  plan.accumulation_steps = proposal.accumulation_steps;
  if (proposal.other_hook) plan.hook = "bf16";
  plan.terms.enforcement =
      proposal.strict ? Enforcement::kStrict : Enforcement::kAudit;
  plan.terms.commit_vote = proposal.commit_vote;
  plan.at_step = proposal.at_step;
  pending_.push_back(std::move(plan));
}

// The newest of those that are due.
std::optional<server::Plan> World::NextPlan(int64_t step) {
  std::optional<server::Plan> next;
  for (auto plan = pending_.begin(); plan != pending_.end();) {
    if (plan->at_step > step) {
      ++plan;
      continue;
    }
    next = *plan;
    plan = pending_.erase(plan);
  }
  return next;
}

}  // namespace coxswain::simulation
