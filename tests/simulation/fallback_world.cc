#include "tests/simulation/fallback_world.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/simulation/worker.h"

namespace coxswain::simulation {
namespace {

constexpr char kTrain[] = "train";
constexpr int kChaos = 3000;         // events before all is well again
constexpr int kMostEvents = 400000;  // after which it is a standstill
constexpr absl::Duration kEvent = absl::Milliseconds(100);

schedule::StepAgent::Options AgentOptions(const schedule::Plan& plan) {
  schedule::StepAgent::Options options;
  options.stream = kTrain;
  options.terms = plan.terms;
  options.timeout = absl::InfiniteDuration();
  options.resend = absl::Seconds(5);
  return options;
}

schedule::Decision ToServer(const schedule::Decision& received,
                            const std::map<int64_t, schedule::Plan>& plans) {
  schedule::Decision last = AsSent(received);
  if (last.plan.has_value()) last.plan = plans.at(last.plan->version);
  return last;
}

std::string Text(const schedule::Decision& decision) {
  return absl::StrCat(decision.commit ? "commit" : "skip", " ", decision.reason,
                      " stop ", decision.stop, " checkpoint ",
                      decision.checkpoint, " plan ",
                      decision.plan.has_value() ? decision.plan->version : 0);
}

}  // namespace

FallbackWorld::FallbackWorld(uint64_t seed, Disloyalty disloyalty)
    : disloyalty_(disloyalty), dice_(seed, 7) {
  world_ = dice_.Int(1, 4);
  rounds_ = dice_.Int(4, 16);
  plan_.version = 1;
  plan_.hook = "allreduce";
  plan_.terms.enforcement = dice_.Chance(0.5) ? schedule::Enforcement::kAudit
                                              : schedule::Enforcement::kStrict;
  plan_.terms.commit_vote = dice_.Chance(0.3);
  plan_.terms.progress_timeout = absl::Hours(100);
  plans_[1] = plan_;
  for (int rank = 0; rank < world_; ++rank) {
    workers_.emplace_back(AgentOptions(plan_));
  }
  const auto ranks = static_cast<size_t>(world_);
  attached_.resize(ranks);
  fallback_attached_.resize(ranks);
  schedule::FallbackSchedule::Options options;
  options.world_size = world_;
  options.plan = [this]() { return plans_.at(Rank(0).plan_version); };
  fallback_ = std::make_unique<schedule::FallbackSchedule>(std::move(options));
  Start(/*resumed=*/false);
}

FallbackWorld::Result FallbackWorld::Run() {
  int events = 0;
  while (!Done() && result_.violation.empty()) {
    if (++events > kChaos) healed_ = true;
    if (events > kMostEvents) Violate("the ranks have come to a standstill");
    now_ += kEvent;
    HappenOnce();
  }
  result_.fallback_epochs = fallback_->epoch().fallback;
  for (const auto& [round, outcome] : outcomes_) {
    if (outcome.decision.plan.has_value()) ++result_.plans;
  }
  return result_;
}

bool FallbackWorld::Done() const {
  return std::all_of(workers_.begin(), workers_.end(), [&](const Worker& one) {
    return one.agent.round() >= rounds_;
  });
}

void FallbackWorld::Violate(absl::string_view what) {
  if (result_.violation.empty()) result_.violation = std::string(what);
}

void FallbackWorld::HappenOnce() {
  const int rank = dice_.Int(0, world_ - 1);
  Worker& worker = Rank(rank);
  if (!healed_ && dice_.Chance(0.004)) return Crash();
  if (agreement_ == nullptr) {
    if (healed_ || dice_.Chance(0.01)) return Start(/*resumed=*/true);
  }
  if (!healed_ && dice_.Chance(0.004) && pending_.size() < 2 &&
      plans_.size() < 6) {
    schedule::Plan next = plans_.rbegin()->second;
    ++next.version;
    plans_[next.version] = next;
    pending_.push_back(next);
    return;
  }
  if (dice_.Chance(0.004) && agreement_ != nullptr) {
    return agreement_->RequestCheckpoint("an operator");
  }
  switch (dice_.Int(0, 3)) {
    case 0:
      return Work(rank);
    case 1:
      if (worker.coordinator == nullptr && agreement_ != nullptr) {
        if (healed_ || dice_.Chance(0.1)) Connect(rank, false);
      } else if (worker.fallback == nullptr && (worker.lost || worker.bound)) {
        Connect(rank, true);
      }
      return;
    default:
      break;
  }
  if (streams_.empty()) return;
  Stream* const stream =
      streams_[static_cast<size_t>(
                   dice_.Int(0, static_cast<int>(streams_.size()) - 1))]
          .get();
  const bool ends =
      stream->to_fallback ? dice_.Chance(0.005) : dice_.Chance(0.02);
  if (!healed_ && ends) return Break(stream);
  if (dice_.Chance(0.5)) {
    ReadAtServer(stream);
  } else {
    ReadAtRank(stream);
  }
  streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                [](const std::unique_ptr<Stream>& one) {
                                  return !one->rank_open && !one->server_open;
                                }),
                 streams_.end());
}

// ---- ranks

void FallbackWorld::Work(int rank) {
  Worker& worker = Rank(rank);
  schedule::StepAgent& agent = worker.agent;
  if (agent.round() >= rounds_ && !agent.announced()) return;
  if (!agent.announced()) {
    schedule::Ticket ticket;
    ticket.step = agent.round();
    ticket.micro_batches = ticket.window = 1;
    ticket.weight = 1;
    ticket.plan_version = worker.plan_version;
    ticket.hook = "allreduce";
    if (dice_.Chance(0.1)) ticket.skip = "a gradient is nan";
    if (!agent.Announce(ticket, now_).ok()) Violate("announced twice");
    worker.voted = false;
  } else if (!worker.voted && agent.granted()) {
    schedule::Vote vote;
    vote.commit = !dice_.Chance(0.1);
    if (!agent.Vote(vote, now_).ok()) Violate("voted twice");
    worker.voted = true;
  } else if (worker.voted && agent.decided()) {
    const int64_t round = agent.round();
    const schedule::Decision decision = agent.TakeDecision();
    NoteActed(rank, round, decision);
    if (decision.plan.has_value()) worker.plan_version = decision.plan->version;
  }
  Pump(rank);
}

void FallbackWorld::NoteActed(int rank, int64_t round,
                              const schedule::Decision& decision) {
  const std::string text = Text(decision);
  const auto [found, first] = outcomes_.emplace(round, Outcome{decision, text});
  if (first) {
    const auto decided = decided_.find(round);
    if (decided != decided_.end() && decided->second != text) {
      ++result_.forgotten;
    }
  } else if (found->second.text != text) {
    Violate(absl::StrCat("rank ", rank, " acted in round ", round, " on \"",
                         text, "\", another on \"", found->second.text, "\""));
  }
}

void FallbackWorld::Connect(int rank, bool to_fallback) {
  auto stream = std::make_unique<Stream>();
  stream->rank = rank;
  stream->to_fallback = to_fallback;
  stream->coordinator = coordinator_;
  stream->up.emplace_back();
  Worker& worker = Rank(rank);
  (to_fallback ? worker.fallback : worker.coordinator) = stream.get();
  if (!to_fallback) worker.attached = false;
  if (to_fallback) worker.in_fallback = false;
  streams_.push_back(std::move(stream));
}

void FallbackWorld::Pump(int rank) {
  Worker& worker = Rank(rank);
  if (worker.leader == Leader::kNone) return;
  Stream* const stream =
      worker.leader == Leader::kFallback ? worker.fallback : worker.coordinator;
  if (stream == nullptr) return;
  for (const schedule::StepAgent::Outgoing& outgoing :
       worker.agent.Take(now_)) {
    Up up;
    if (std::holds_alternative<schedule::Ticket>(outgoing)) {
      up.kind = Up::Kind::kTicket;
      up.ticket = std::get<schedule::Ticket>(outgoing);
    } else {
      up.kind = Up::Kind::kVote;
      up.vote = std::get<schedule::Vote>(outgoing);
    }
    stream->up.push_back(std::move(up));
  }
}

void FallbackWorld::SendPosition(int rank, Stream* stream) {
  const auto received = Rank(rank).agent.last_decision();
  if (!received.has_value()) return;
  Up up;
  up.kind = Up::Kind::kPosition;
  up.last = ToServer(*received, plans_);
  stream->up.push_back(std::move(up));
}

void FallbackWorld::FollowCoordinator(int rank) {
  Worker& worker = Rank(rank);
  worker.leader = Leader::kCoordinator;
  if (worker.epoch.fallback > 0 && disloyalty_ != Disloyalty::kHidesEpochs) {
    Up up;
    up.kind = Up::Kind::kReport;
    up.fallback_epoch = worker.epoch.fallback;
    worker.coordinator->up.push_back(std::move(up));
  }
  SendPosition(rank, worker.coordinator);
  worker.agent.OnConnected();
  Pump(rank);
}

void FallbackWorld::FollowFallback(int rank) {
  Worker& worker = Rank(rank);
  worker.leader = Leader::kFallback;
  worker.bound = true;
  worker.epoch = std::max(worker.epoch, worker.fallback_epoch);
  SendPosition(rank, worker.fallback);
  worker.agent.OnConnected();
  Pump(rank);
}

void FallbackWorld::OnCoordinatorAttached(int rank) {
  Worker& worker = Rank(rank);
  worker.attached = true;
  worker.lost = false;
  if (disloyalty_ == Disloyalty::kLeavesUnreleased && worker.bound) {
    worker.bound = false;
    if (worker.fallback != nullptr) worker.fallback->rank_open = false;
    worker.fallback = nullptr;
    worker.in_fallback = false;
  }
  if (!worker.bound) return FollowCoordinator(rank);
  worker.leader = Leader::kNone;
  if (!worker.in_fallback) return;
  Up up;
  up.kind = Up::Kind::kRelease;
  worker.fallback->up.push_back(std::move(up));
}

void FallbackWorld::OnCoordinatorGone(int rank) {
  Worker& worker = Rank(rank);
  worker.coordinator = nullptr;
  if (!std::exchange(worker.attached, false)) return;
  worker.lost = true;
  worker.leader = Leader::kNone;
}

void FallbackWorld::ReadAtRank(Stream* stream) {
  if (!stream->rank_open) return;
  if (!stream->down.empty()) {
    const Down down = std::move(stream->down.front());
    stream->down.pop_front();
    return OnDown(stream, down);
  }
  // The rank finds out that the other end is closed.
  if (stream->server_open) return;
  Down end;
  end.kind = Down::Kind::kEnd;
  OnDown(stream, end);
}

void FallbackWorld::OnDown(Stream* stream, const Down& down) {
  const int rank = stream->rank;
  Worker& worker = Rank(rank);
  const bool of_fallback = stream->to_fallback;
  if (down.kind == Down::Kind::kEnd) {
    stream->rank_open = false;
    if (!of_fallback) return OnCoordinatorGone(rank);
    worker.fallback = nullptr;
    worker.in_fallback = false;
    if (worker.leader == Leader::kFallback) worker.leader = Leader::kNone;
    if (!down.released) return;
    worker.bound = false;
    if (!worker.lost) FollowCoordinator(rank);
    return;
  }
  if (down.kind == Down::Kind::kAttached) {
    if (!of_fallback) {
      worker.epoch = std::max(
          worker.epoch, {std::max(down.epoch.fallback, worker.epoch.fallback),
                         down.epoch.term});
      return OnCoordinatorAttached(rank);
    }
    worker.in_fallback = true;
    worker.fallback_epoch = down.epoch;
    if (worker.lost) return FollowFallback(rank);
    Up up;
    up.kind = Up::Kind::kRelease;
    stream->up.push_back(std::move(up));
    return;
  }
  const Leader from = of_fallback ? Leader::kFallback : Leader::kCoordinator;
  const bool both = disloyalty_ == Disloyalty::kFollowsBoth;
  if (worker.leader != from && !both) return;
  if (down.kind == Down::Kind::kGrant) {
    return worker.agent.OnGrant(down.round);
  }
  const bool earlier = disloyalty_ == Disloyalty::kLeavesUnreleased
                           ? down.epoch.fallback < worker.epoch.fallback
                           : down.epoch < worker.epoch;
  if (earlier && disloyalty_ != Disloyalty::kTakesEarlierEpochs &&
      disloyalty_ != Disloyalty::kHidesEpochs && !both) {
    return;
  }
  worker.agent.OnDecision(down.decision);
}

// Both ends find out by themselves.
void FallbackWorld::Break(Stream* stream) {
  if (dice_.Chance(0.5)) stream->up.clear();
  if (!stream->rank_open) return;
  stream->rank_open = false;
  const int rank = stream->rank;
  if (!stream->to_fallback) return OnCoordinatorGone(rank);
  Worker& worker = Rank(rank);
  worker.fallback = nullptr;
  worker.in_fallback = false;
  if (worker.leader == Leader::kFallback) worker.leader = Leader::kNone;
}

// ---- the leaders

void FallbackWorld::SendDown(Stream* stream, Down down) {
  if (stream != nullptr && stream->server_open) {
    stream->down.push_back(std::move(down));
  }
}

FallbackWorld::Down FallbackWorld::DownOf(
    const schedule::StepAgreement::Message& message,
    const schedule::Epoch& epoch) {
  Down down;
  down.round = message.round;
  down.epoch = epoch;
  if (message.kind == schedule::StepAgreement::Message::Kind::kGrant) {
    down.kind = Down::Kind::kGrant;
    return down;
  }
  down.kind = Down::Kind::kDecision;
  down.decision = AsSent(message.decision);
  return down;
}

void FallbackWorld::ReadAtServer(Stream* stream) {
  if (!stream->server_open) return;
  if (!stream->to_fallback && stream->coordinator != coordinator_) {
    stream->server_open = false;  // it died with its coordinator
    return;
  }
  if (!stream->up.empty()) {
    const Up up = std::move(stream->up.front());
    stream->up.pop_front();
    return stream->to_fallback ? HandleAtFallback(stream, up)
                               : HandleAtCoordinator(stream, up);
  }
  if (stream->rank_open) return;
  // The server finds out that the rank's end is closed.
  stream->server_open = false;
  const auto rank = static_cast<size_t>(stream->rank);
  if (!stream->to_fallback && attached_[rank] == stream) {
    attached_[rank] = nullptr;
  }
  if (stream->to_fallback && fallback_attached_[rank] == stream) {
    fallback_attached_[rank] = nullptr;
    fallback_->OnDetached(stream->rank);
  }
}

void FallbackWorld::Crash() {
  if (agreement_ == nullptr) return;
  ++result_.crashes;
  agreement_.reset();
  ++coordinator_;
  for (Stream*& stream : attached_) stream = nullptr;
  for (const auto& stream : streams_) {
    if (!stream->to_fallback) stream->server_open = false;
  }
}

void FallbackWorld::Start(bool resumed) {
  epoch_ = {0, coordinator_ + 1};
  senders_.assign(static_cast<size_t>(world_), {});
  MakeAgreement(resumed);
}

void FallbackWorld::MakeAgreement(bool resumed) {
  schedule::StepAgreement::Options options;
  options.stream = kTrain;
  options.world_size = world_;
  options.plan = plan_before_.value_or(plan_);
  options.next_plan = [this](int64_t step) { return NextPlan(step); };
  options.resumed = resumed;
  if (plan_before_.has_value()) options.undelivered = plan_;
  if (resumed) {
    for (int rank = 0; rank < world_; ++rank) options.absent.push_back(rank);
  }
  agreement_ = std::make_unique<schedule::StepAgreement>(std::move(options));
}

// Is durable at once.
std::optional<schedule::Plan> FallbackWorld::NextPlan(int64_t /*step*/) {
  if (pending_.empty()) return std::nullopt;
  plan_before_ = plan_;
  plan_ = pending_.front();
  pending_.erase(pending_.begin());
  return plan_;
}

bool FallbackWorld::Counts(const Stream& stream) const {
  const Sender& sender = senders_[static_cast<size_t>(stream.rank)];
  return sender.attachment == stream.attachment && !(sender.epoch < epoch_);
}

void FallbackWorld::OnReport(const Stream& stream, int64_t fallback_epoch) {
  Sender& sender = senders_[static_cast<size_t>(stream.rank)];
  if (sender.attachment != stream.attachment) return;
  const schedule::Epoch epoch{fallback_epoch, coordinator_ + 1};
  sender.epoch = std::max(sender.epoch, epoch);
  if (epoch_ < epoch) RaiseEpoch(epoch, stream.rank);
}

void FallbackWorld::RaiseEpoch(const schedule::Epoch& epoch, int rank) {
  epoch_ = epoch;
  for (int other = 0; other < world_; ++other) {
    const auto index = static_cast<size_t>(other);
    if (other == rank) continue;
    Stream* const stream = std::exchange(attached_[index], nullptr);
    if (stream == nullptr) continue;
    Down end;
    end.kind = Down::Kind::kEnd;
    SendDown(stream, end);
    stream->server_open = false;
  }
  MakeAgreement(/*resumed=*/true);
}

void FallbackWorld::HandleAtCoordinator(Stream* stream, const Up& up) {
  const int rank = stream->rank;
  const auto index = static_cast<size_t>(rank);
  if (up.kind == Up::Kind::kHello) {
    if (attached_[index] != nullptr) attached_[index]->server_open = false;
    attached_[index] = stream;
    stream->attachment = ++last_attachment_;
    senders_[index] = {stream->attachment, epoch_};
    Down attached;
    attached.epoch = epoch_;
    return SendDown(stream, attached);
  }
  if (up.kind == Up::Kind::kReport) return OnReport(*stream, up.fallback_epoch);
  if (!Counts(*stream)) return;
  switch (up.kind) {
    case Up::Kind::kPosition:
      return SendAsCoordinator(agreement_->OnPosition(rank, up.last, now_));
    case Up::Kind::kTicket:
      return SendAsCoordinator(agreement_->OnTicket(rank, up.ticket, now_));
    case Up::Kind::kVote:
      return SendAsCoordinator(agreement_->OnVote(rank, up.vote, now_));
    default:
      return;
  }
}

void FallbackWorld::SendAsCoordinator(
    const schedule::StepAgreement::Messages& messages) {
  using Message = schedule::StepAgreement::Message;
  for (const Message& message : messages) {
    if (message.kind != Message::Kind::kGrant &&
        message.kind != Message::Kind::kDecision) {
      continue;
    }
    const Down down = DownOf(message, epoch_);
    const bool all = message.rank == Message::kAllRanks;
    if (all && message.kind == Message::Kind::kDecision) {
      ++result_.by_coordinator;
      decided_[message.round] = Text(down.decision);
    }
    for (int rank = 0; rank < world_; ++rank) {
      if (!all && message.rank != rank) continue;
      SendDown(attached_[static_cast<size_t>(rank)], down);
    }
  }
  if (agreement_->failure().ok()) return;
  Violate(absl::StrCat("all ranks are honest, and it failed: ",
                       agreement_->failure().message()));
}

void FallbackWorld::EndFallback(int rank, bool released) {
  Stream*& visit = fallback_attached_[static_cast<size_t>(rank)];
  if (visit == nullptr) return;
  Down end;
  end.kind = Down::Kind::kEnd;
  end.released = released;
  SendDown(visit, end);
  visit->server_open = false;
  visit = nullptr;
}

void FallbackWorld::HandleAtFallback(Stream* stream, const Up& up) {
  const int rank = stream->rank;
  switch (up.kind) {
    case Up::Kind::kHello: {
      const schedule::FallbackSchedule::Attached state =
          fallback_->OnAttached(rank);
      for (int other : state.detached) EndFallback(other, false);
      EndFallback(rank, false);
      fallback_attached_[static_cast<size_t>(rank)] = stream;
      Down attached;
      attached.epoch = state.epoch;
      return SendDown(stream, attached);
    }
    case Up::Kind::kPosition:
      return SendAsFallback(fallback_->OnPosition(rank, kTrain, up.last, now_));
    case Up::Kind::kTicket:
      return SendAsFallback(fallback_->OnTicket(rank, kTrain, up.ticket, now_));
    case Up::Kind::kVote:
      return SendAsFallback(fallback_->OnVote(rank, kTrain, up.vote, now_));
    case Up::Kind::kRelease:
      fallback_->OnDetached(rank);
      return EndFallback(rank, true);
    default:
      return;
  }
}

void FallbackWorld::SendAsFallback(
    const schedule::FallbackSchedule::Messages& messages) {
  using schedule::Message;
  for (const Message& message : messages) {
    const bool all = message.rank == Message::kAllRanks;
    if (all && message.kind == Message::Kind::kDecision) ++result_.by_fallback;
    for (int rank = 0; rank < world_; ++rank) {
      if (!all && message.rank != rank) continue;
      SendDown(fallback_attached_[static_cast<size_t>(rank)],
               DownOf(message, fallback_->epoch()));
    }
  }
}

}  // namespace coxswain::simulation
