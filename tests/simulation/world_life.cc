// The world's part that is the life of the coordinator: what it writes, how it
// dies, and how the ranks come back to it.
#include <algorithm>
#include <utility>

#include "schedule/schedule_errors.h"
#include "schedule/step_agreement.h"
#include "schedule/ticket.h"
#include "tests/simulation/world.h"

namespace coxswain::simulation {
namespace {

// As MembershipOptions::reattach_grace.
constexpr absl::Duration kGrace = absl::Seconds(20);

}  // namespace

void World::WriteLater(Write write) {
  writes_.push_back(std::move(write));
  At(dice_.Between(absl::ZeroDuration(), history_.slowest_write), Kind::kCommit,
     0, ++written_);
}

// Everything up to this one: writes are committed in their order.
void World::Commit(uint64_t up_to) {
  while (!writes_.empty() && written_ - writes_.size() < up_to) {
    const Write write = std::move(writes_.front());
    writes_.pop_front();
    if (write.position.has_value()) {
      durable_.position = write.position;
      referee_.OnKept(write.position->round);
    }
    if (write.left < 0) continue;
    durable_.left[static_cast<size_t>(write.left)] = true;
    Rank(write.left).departed = true;
  }
}

// Writes the last decision that a leaving rank has received, before its
// departure is written.
void World::Keep(const Worker& worker) {
  const std::optional<schedule::Decision> received =
      worker.agent.last_decision();
  if (!received.has_value()) return;
  if (sabotage_ != Sabotage::kHidesPositions && !failed_) {
    ReceivePosition(worker.rank, *received);
  }
  if (kept_round_ >= received->round) return;
  kept_round_ = received->round;
  Write write;
  write.position = ToServerDecision(*received);
  WriteLater(std::move(write));
}

void World::OnLeave(int rank) {
  // It asks again once it is back.
  if (agreement_ == nullptr || Rank(rank).coordinator != coordinator_) return;
  const auto index = static_cast<size_t>(rank);
  if (left_[index]) return;
  Keep(Rank(rank));
  left_[index] = true;
  absent_[index] = false;
  Write write;
  write.left = rank;
  WriteLater(std::move(write));
  if (failed_) return;
  SendMessages(agreement().OnMemberLeft(rank, now_));
  AfterAgreement();
}

void World::WantRegroup(const Regroup& regroup) {
  if (regroup.drains >= 0) {
    Rank(regroup.drains).agent.RequestDrain("SIGTERM");
  } else if (!Idle()) {
    agreement().RequestRegroup("2 spares wait");
    referee_.OnRegroupWanted();
  }
}

void World::WantCheckpoint(const CheckpointRequest& request) {
  if (request.rank >= 0) {
    Rank(request.rank).agent.RequestCheckpoint("SIGTERM");
  } else if (!Idle()) {
    agreement().RequestCheckpoint("an operator");
    referee_.OnCheckpointWanted();
  }
}

// Some have received it then, and some have not.
void World::CrashWith(const schedule::Decision& decision) {
  const bool news = decision.plan.has_value() || !decision.stop.empty() ||
                    !decision.regroup.empty() || !decision.checkpoint.empty();
  crashed_.resize(history_.crashes.size(), false);
  for (size_t i = 0; i < history_.crashes.size(); ++i) {
    const Crash& crash = history_.crashes[i];
    const bool due = crash.when == Crash::When::kNews
                         ? news
                         : crash.when == Crash::When::kDecision &&
                               crash.round == decision.round;
    if (!due || crashed_[i]) continue;
    crashed_[i] = true;
    At(Delay(), Kind::kCrash, 0, i);
    return;
  }
}

void World::Die(const Crash& crash) {
  if (Idle()) return;
  ++counts_.crashes;
  agreement_.reset();
  server_tick_ = absl::InfiniteFuture();
  if (sabotage_ == Sabotage::kForgetsLast) durable_.position.reset();
  if (sabotage_ == Sabotage::kForgetsPlan) durable_.plan_before.reset();
  writes_.clear();
  kept_round_ = durable_.position.has_value() ? durable_.position->round : -1;
  ++coordinator_;
  referee_.OnCrashed();
  for (Worker& worker : workers_) {
    worker.connected = false;
    ++worker.connection;
  }
  At(crash.down, Kind::kRestart);
}

void World::Restart() {
  left_ = durable_.left;
  stopped_ = false;
  for (const Worker& worker : workers_) {
    const auto index = static_cast<size_t>(worker.rank);
    absent_[index] = !left_[index];
    if (left_[index]) continue;
    // What does not return is missed; see AfterGrace.
    if (worker.phase == Worker::Phase::kStopped || worker.frozen) continue;
    At(dice_.Between(absl::ZeroDuration(), history_.slowest_return),
       Kind::kReturn, worker.rank);
  }
  MakeAgreement(/*resumed=*/true);
  At(history_.slowest_return + kGrace, Kind::kGraceOver, 0,
     static_cast<size_t>(coordinator_));
  AfterAgreement();
}

void World::MakeAgreement(bool resumed) {
  schedule::StepAgreement::Options options;
  options.stream = "train";
  options.world_size = history_.world_size;
  options.plan = durable_.plan_before.value_or(durable_.plan);
  options.next_plan = [this](int64_t step) { return NextPlan(step); };
  if (sabotage_ != Sabotage::kForgetsMesh) options.mesh = history_.mesh;
  options.resumed = resumed;
  if (durable_.plan_before.has_value()) options.undelivered = durable_.plan;
  for (int rank = 0; rank < history_.world_size; ++rank) {
    if (absent_[static_cast<size_t>(rank)]) options.absent.push_back(rank);
  }
  agreement_ = std::make_unique<schedule::StepAgreement>(std::move(options));
  if (!resumed) return;
  if (durable_.position.has_value()) {
    agreement().Restore(*durable_.position);
    stopped_ =
        !durable_.position->stop.empty() || !durable_.position->regroup.empty();
  }
  for (int rank = 0; rank < history_.world_size; ++rank) {
    if (!left_[static_cast<size_t>(rank)]) continue;
    SendMessages(agreement().OnMemberLeft(rank, now_));
  }
}

// The membership drops the ranks that have not come back.
void World::AfterGrace() {
  if (Idle()) return;
  schedule::ScheduleMismatch mismatch;
  for (int rank = 0; rank < history_.world_size; ++rank) {
    if (absent_[static_cast<size_t>(rank)]) mismatch.outliers.push_back(rank);
  }
  if (mismatch.outliers.empty()) return;
  Fail(schedule::ScheduleMismatchError("did not come back", mismatch));
}

void World::Reattach(Worker* worker) {
  // A rank that finds no coordinator tries again when there is one.
  if (agreement_ == nullptr || worker->connected) return;
  const bool restarted = worker->coordinator != coordinator_;
  if (restarted && worker->frozen) return;
  worker->connected = true;
  worker->coordinator = coordinator_;
  if (worker->departed || worker->phase == Worker::Phase::kStopped) return;
  const auto index = static_cast<size_t>(worker->rank);
  if (restarted) {
    absent_[index] = false;
    worker->returned_at = now_;
    worker->agent.OnOtherCoordinator(now_);
    if (worker->AtGate()) worker->waiting_since = now_;
    if (!failed_) agreement().OnBack(worker->rank, now_);
  }
  worker->agent.OnConnected();
  SendPosition(worker);
  AfterAgreement();
  if (worker->phase == Worker::Phase::kLeft) {
    At(Delay(), Kind::kLeave, worker->rank);
  }
  Pump(worker);
}

void World::SendPosition(Worker* worker) {
  const std::optional<schedule::Decision> received =
      worker->agent.last_decision();
  if (!received.has_value() || Idle()) return;
  if (sabotage_ == Sabotage::kHidesPositions) return;
  // Messages of the rank's other threads may come before it; but none of them
  // leaves.
  if (worker->phase == Worker::Phase::kLeft || dice_.Chance(0.7)) {
    return ReceivePosition(worker->rank, *received);
  }
  ToServer& message = to_server_.emplace_back();
  message.connection = worker->connection;
  message.coordinator = worker->coordinator;
  message.position = received;
  At(Delay(), Kind::kPosition, worker->rank, to_server_.size() - 1);
}

void World::ReceivePosition(int rank, const schedule::Decision& received) {
  SendMessages(agreement().OnPosition(rank, ToServerDecision(received), now_));
}

schedule::Decision World::ToServerDecision(
    const schedule::Decision& received) const {
  schedule::Decision last = AsSent(received);
  if (last.plan.has_value()) last.plan = plans_.at(last.plan->version);
  return last;
}

}  // namespace coxswain::simulation
