// The world's part that is a rank's training loop.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "schedule/step_agent.h"
#include "tests/simulation/world.h"

namespace coxswain::simulation {
namespace {

using Phase = Worker::Phase;

}  // namespace

void World::Compute(Worker* worker) {
  worker->phase = Phase::kComputing;
  absl::Duration time =
      dice_.Between(absl::ZeroDuration(), history_.slowest_step);
  if (history_.straggle_chance > 0 && dice_.Chance(history_.straggle_chance)) {
    time += history_.plan.terms.progress_timeout / 3;
  }
  At(time, Kind::kComputed, worker->rank);
}

bool World::Deviates(const Worker& worker, Deviation deviation) const {
  return history_.deviation == deviation &&
         worker.agent.round() == history_.deviation_round &&
         std::binary_search(history_.deviants.begin(), history_.deviants.end(),
                            worker.rank);
}

void World::Stick(Worker* worker) {
  worker->deviated = true;
  worker->phase = Phase::kStuck;
  referee_.OnDeviated(worker->rank);
}

void World::OnComputed(Worker* worker) {
  if (worker->phase != Phase::kComputing) return;
  worker->progressed = last_progress_ = now_;
  if (!worker->deviated) {
    if (Deviates(*worker, Deviation::kSilent)) {
      worker->frozen = true;
      return Stick(worker);
    }
    if (Deviates(*worker, Deviation::kLeaves)) {
      referee_.OnDeviated(worker->rank);
      worker->deviated = true;
      return Leave(worker);
    }
    if (Deviates(*worker, Deviation::kSkipsExchange)) {
      referee_.OnDeviated(worker->rank);
      worker->deviated = true;
      worker->Advance();
      return GoOn(worker);
    }
  }
  schedule::Ticket ticket = worker->NextTicket();
  if (dice_.Chance(history_.skip_chance)) ticket.skip = "a gradient is nan";
  if (!worker->deviated) Deviate(worker, &ticket);
  const int64_t round = worker->agent.round();
  if (!worker->deviated) {
    referee_.OnAnnounced(worker->rank, round, ticket.step, worker->plan);
  }
  worker->exchange_round = round;
  const absl::Status announced = worker->agent.Announce(ticket, now_);
  if (!announced.ok()) return referee_.Violate(announced.message());
  worker->phase = Phase::kAwaitingGrant;
  worker->waiting_since = now_;
  Pump(worker);
  BeginExchange(worker);
}

void World::Deviate(Worker* worker, schedule::Ticket* ticket) {
  if (!Deviates(*worker, history_.deviation)) return;
  const schedule::Ticket honest = *ticket;
  const bool refuses =
      worker->plan.terms.uneven_data == schedule::UnevenData::kRefuse;
  switch (history_.deviation) {
    case Deviation::kMicroBatches:
      ticket->micro_batches =
          worker->plan.terms.sync_each_batch ? 2 : worker->window + 1;
      ticket->weight = ticket->micro_batches;
      break;
    case Deviation::kHook:
      ticket->hook = "noop";
      break;
    case Deviation::kLayout:
      ++ticket->layout;
      break;
    case Deviation::kDigest:
      ++ticket->digest;
      break;
    case Deviation::kChecksum:
      ticket->checksum = honest.checksum.value_or(0) + 1;
      break;
    case Deviation::kPlanVersion:
      ticket->plan_version += ticket->plan_version > 1 ? -1 : 1;
      break;
    case Deviation::kWeight:
      ticket->weight = std::nan("");
      break;
    case Deviation::kEndOfData:
      if (!refuses) return;
      ticket->micro_batches = honest.micro_batches - 1;
      ticket->weight = ticket->micro_batches;
      ticket->end_of_data = true;
      break;
    case Deviation::kTwoTickets:
      ++ticket->digest;
      SendForged(*worker, *ticket, worker->agent.round(), Delay());
      *ticket = honest;
      break;
    case Deviation::kFutureRound:
      ++ticket->digest;
      // At once: later it could be taken for the rank's ticket then.
      SendForged(*worker, *ticket, worker->agent.round() + dice_.Int(1, 3),
                 absl::ZeroDuration());
      *ticket = honest;
      break;
    case Deviation::kPipeline:
      ++ticket->pipeline;
      break;
    case Deviation::kOtherWeight:
      if (honest.micro_batches == 0) return;
      ++ticket->weight;
      break;
    case Deviation::kFewerMicroBatches:
      if (honest.micro_batches == 0) return;
      ticket->micro_batches = honest.micro_batches - 1;
      ticket->weight = ticket->micro_batches;
      ticket->end_of_data = true;
      break;
    default:
      return;
  }
  const bool forged = history_.deviation == Deviation::kTwoTickets ||
                      history_.deviation == Deviation::kFutureRound;
  // No rank must announce the same: it is nothing that it should not do.
  if (!forged && history_.AlikeWithDeviants() == 1) return;
  worker->deviated = true;
  referee_.OnDeviated(worker->rank);
}

// To the exchange that comes next, if one does.
void World::GoOn(Worker* worker) {
  if (worker->AtEnd()) {
    Leave(worker);
  } else {
    Compute(worker);
  }
}

void World::BeginExchange(Worker* worker) {
  if (worker->phase != Phase::kAwaitingGrant || !worker->agent.granted()) {
    return;
  }
  EndWait(worker);
  worker->progressed = last_progress_ = now_;
  referee_.OnExchangeBegins(worker->rank, worker->agent.round(), worker->plan);
  if (!worker->deviated && Deviates(*worker, Deviation::kHangsInExchange)) {
    return Stick(worker);
  }
  worker->phase = Phase::kExchanging;
  const size_t index = static_cast<size_t>(worker->exchanges++);
  if (exchanges_.size() <= index) exchanges_.resize(index + 1);
  Exchange& exchange = exchanges_[index];
  if (worker->data <= worker->window) ++exchange.done;
  // A collective ends when all have begun it.
  if (++exchange.begun < history_.world_size) return;
  const absl::Duration time =
      dice_.Between(absl::ZeroDuration(), history_.slowest_step / 4);
  for (Worker& other : workers_) {
    if (other.phase != Phase::kExchanging) continue;
    At(time + dice_.Between(absl::ZeroDuration(), absl::Milliseconds(20)),
       Kind::kExchanged, other.rank);
  }
}

void World::OnExchanged(Worker* worker) {
  if (worker->phase != Phase::kExchanging) return;
  worker->progressed = last_progress_ = now_;
  const Exchange& exchange =
      exchanges_[static_cast<size_t>(worker->exchanges - 1)];
  worker->all_done =
      worker->plan.terms.uneven_data == schedule::UnevenData::kEndAtFirst
          ? exchange.done > 0
          : exchange.done == history_.world_size;
  if (!worker->deviated && Deviates(*worker, Deviation::kNoVote)) {
    return Stick(worker);
  }
  schedule::Vote vote;
  if (dice_.Chance(history_.skip_chance)) {
    vote.commit = false;
    vote.reason = "the loss is infinite";
  }
  const absl::Status voted = worker->agent.Vote(vote, now_);
  if (!voted.ok()) return referee_.Violate(voted.message());
  worker->phase = Phase::kAwaitingDecision;
  worker->waiting_since = now_;
  Pump(worker);
  Act(worker);
}

void World::Act(Worker* worker) {
  if (worker->phase != Phase::kAwaitingDecision || !worker->agent.decided()) {
    return;
  }
  EndWait(worker);
  worker->progressed = last_progress_ = now_;
  const int64_t round = worker->agent.round();
  const schedule::Decision decision = worker->agent.TakeDecision();
  referee_.OnActed(worker->rank, round, worker->step, decision);
  if (decision.plan.has_value()) worker->plan = *decision.plan;
  worker->Advance();
  if (!decision.regroup.empty()) return Leave(worker);
  if (decision.stop.empty()) return GoOn(worker);
  const bool deviant =
      history_.deviation == Deviation::kIgnoresStop &&
      std::binary_search(history_.deviants.begin(), history_.deviants.end(),
                         worker->rank);
  if (!deviant) return Leave(worker);
  if (!worker->deviated) referee_.OnDeviated(worker->rank);
  worker->deviated = true;
  Compute(worker);
}

void World::Leave(Worker* worker) {
  worker->phase = Phase::kLeft;
  if (!worker->deviated) referee_.OnLeft(worker->rank);
  At(Delay(), Kind::kLeave, worker->rank);
}

void World::EndWait(Worker* worker) {
  if (!worker->AtGate()) return;
  referee_.OnWaited(worker->rank, now_ - worker->waiting_since,
                    worker->agent.options().timeout);
}

void World::OnWake(Worker* worker) {
  if (now_ < worker->next_wake) return;
  worker->next_wake = absl::InfiniteFuture();
  if (worker->AtGate() && worker->agent.Expired(now_)) {
    EndWait(worker);
    referee_.OnTimeout(worker->rank);
    worker->phase = Phase::kStopped;
    return;
  }
  Pump(worker);
}

// Sends what the rank has to send, and schedules the next time.
void World::Pump(Worker* worker) {
  if (!worker->SessionRuns()) return;
  for (const schedule::StepAgent::Outgoing& outgoing :
       worker->agent.Take(now_)) {
    SendUp(*worker, outgoing);
  }
  // During an exchange no rank waits at the gate.
  absl::Time wake = worker->agent.deadline();
  if (wake <= now_) wake = now_ + history_.resend;
  if (wake >= worker->next_wake || wake == absl::InfiniteFuture()) return;
  worker->next_wake = wake;
  At(wake - now_, Kind::kWake, worker->rank);
}

}  // namespace coxswain::simulation
