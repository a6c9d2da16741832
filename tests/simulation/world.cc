#include "tests/simulation/world.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "schedule/stall.h"
#include "schedule/step_agent.h"

namespace coxswain::simulation {
namespace {

using Phase = Worker::Phase;

constexpr absl::Duration kTickLateness = absl::Milliseconds(100);

}  // namespace

World::World(const History& history, Sabotage sabotage)
    : history_(history),
      sabotage_(sabotage),
      dice_(history.seed, 2),
      absent_(static_cast<size_t>(history.world_size), false),
      left_(static_cast<size_t>(history.world_size), false),
      referee_(history_) {
  durable_.left = left_;
  durable_.plan = history_.plan;
  plans_[history_.plan.version] = history_.plan;
  MakeAgreement(/*resumed=*/false);
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
  Result result = counts_;
  result.violation = referee_.violation();
  result.deviated = referee_.deviated();
  result.failure = referee_.failure();
  result.rounds = referee_.decided();
  result.made_again = referee_.made_again();
  for (const Referee::Decided& round : referee_.rounds()) {
    if (!round.commit) ++result.skips;
    if (!round.stop.empty()) ++result.stops;
    if (!round.regroup.empty()) ++result.regroups;
    if (!round.checkpoint.empty()) ++result.checkpoints;
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
  for (size_t i = 0; i < history_.crashes.size(); ++i) {
    const Crash& crash = history_.crashes[i];
    if (crash.when != Crash::When::kAnyTime) continue;
    At(crash.after, Kind::kCrash, 0, i);
  }
  for (size_t i = 0; i < history_.regroups.size(); ++i) {
    At(history_.regroups[i].after, Kind::kRegroup, 0, i);
  }
  for (size_t i = 0; i < history_.checkpoints.size(); ++i) {
    At(history_.checkpoints[i].after, Kind::kWantCheckpoint, 0, i);
  }
  At(history_.plan.terms.progress_timeout / 2, Kind::kStallCheck);
}

bool World::Over() const {
  if (!referee_.violation().empty()) return true;
  // Longer than any wait.
  if (now_ - last_progress_ >
      schedule::StepTimeoutOf(history_.plan.terms) + absl::Minutes(1)) {
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
    case Kind::kLeave:
      return OnLeave(event.rank);
    case Kind::kBreak:
      if (!worker->connected) return;
      worker->connected = false;
      ++worker->connection;
      return At(
          dice_.Between(absl::ZeroDuration(), history_.link.longest_break),
          Kind::kMend, event.rank);
    case Kind::kMend:
    case Kind::kReturn:
      return Reattach(worker);
    case Kind::kPosition:
      return OnToServer(event);
    case Kind::kCommit:
      return Commit(event.payload);
    case Kind::kCrash:
      return Die(history_.crashes[event.payload]);
    case Kind::kRestart:
      return Restart();
    case Kind::kGraceOver:
      return event.payload == static_cast<size_t>(coordinator_) ? AfterGrace()
                                                                : void();
    case Kind::kRegroup:
      return WantRegroup(history_.regroups[event.payload]);
    case Kind::kWantCheckpoint:
      return WantCheckpoint(history_.checkpoints[event.payload]);
    case Kind::kServerTick:
      server_tick_ = absl::InfiniteFuture();
      if (Idle()) return;
      SendMessages(agreement().Tick(now_));
      if (agreement().deadline() <= now_) {
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

void World::SendMessages(const schedule::StepAgreement::Messages& messages) {
  using Message = schedule::StepAgreement::Message;
  for (const Message& message : messages) {
    const bool all = message.rank == Message::kAllRanks;
    if (message.kind == Message::Kind::kLearned) {
      ++counts_.known_by_a_rank;
      continue;
    }
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
      const schedule::Decision& decided = message.decision;
      if (all) {
        referee_.OnDecided(decided, plans_.at(decided.plan_version));
        NoteDecided(decided);
      }
      auto decision = std::make_shared<schedule::Decision>(AsSent(decided));
      // One that a rank has reported has its tag already.
      if (!absl::StartsWith(decided.reason, Referee::kTag)) {
        decision->reason = Referee::Tag(decided);
      }
      down.decision = std::move(decision);
    }
    if (!all) {
      SendDown(message.rank, std::move(down));
      continue;
    }
    for (int rank = 0; rank < history_.world_size; ++rank) SendDown(rank, down);
  }
}

void World::NoteDecided(const schedule::Decision& decision) {
  if (!decision.stop.empty() || !decision.regroup.empty()) stopped_ = true;
  if (decision.plan.has_value() && durable_.plan_since < coordinator_) {
    ++counts_.plans_late;
  }
  CrashWith(decision);
}

void World::AfterAgreement() {
  if (Idle()) return;
  if (!agreement().failure().ok()) return Fail(agreement().failure());
  const absl::Time deadline = agreement().deadline();
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

// As the schedule registry does, with heartbeats that are never late.
void World::CheckStall() {
  const absl::Duration timeout = history_.plan.terms.progress_timeout;
  At(timeout / 2, Kind::kStallCheck);
  if (Idle()) return;
  if (std::count(absent_.begin(), absent_.end(), true) > 0) return;
  schedule::StallInput input;
  input.progress_timeout = timeout;
  input.stopped = stopped_;
  for (const Worker& worker : workers_) {
    schedule::RankActivity& rank = input.ranks.emplace_back();
    rank.live = !left_[static_cast<size_t>(worker.rank)];
    rank.collective_sequence = worker.exchanges;
    rank.progressed = std::max(worker.progressed, worker.returned_at);
    rank.last_contact = now_;
    const auto& last =
        agreement().last_tickets()[static_cast<size_t>(worker.rank)];
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
  if (!agreement().Missing().empty()) return;
  const schedule::StallReport report = schedule::FindStall(now_, input);
  if (!report.stalled) return;
  if (history_.plan.terms.on_stall == schedule::OnStall::kAbort) {
    Fail(report.error);
  } else {
    referee_.OnWarned(report.findings[0]);
  }
}

void World::Propose(const Proposal& proposal) {
  schedule::Plan plan = durable_.plan;
  plan.version = ++newest_plan_;
  plan.accumulation_steps = proposal.accumulation_steps;
  if (proposal.other_hook) plan.hook = "bf16";
  plan.terms.enforcement = proposal.strict ? schedule::Enforcement::kStrict
                                           : schedule::Enforcement::kAudit;
  plan.terms.commit_vote = proposal.commit_vote;
  plan.at_step = proposal.at_step;
  plans_[plan.version] = plan;
  durable_.pending.push_back(std::move(plan));
}

// The newest of those that are due.
std::optional<schedule::Plan> World::NextPlan(int64_t step) {
  std::optional<schedule::Plan> next;
  std::vector<schedule::Plan>& pending = durable_.pending;
  for (auto plan = pending.begin(); plan != pending.end();) {
    if (plan->at_step > step) {
      ++plan;
      continue;
    }
    next = *plan;
    plan = pending.erase(plan);
  }
  if (!next.has_value()) return next;
  // Is durable at once, with all that was written before.
  Commit(written_);
  durable_.plan_before = durable_.plan;
  durable_.plan = *next;
  durable_.plan_since = coordinator_;
  return next;
}

}  // namespace coxswain::simulation
