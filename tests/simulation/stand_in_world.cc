#include "tests/simulation/stand_in_world.h"

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
  options.patience = absl::InfiniteDuration();
  options.resend = absl::Seconds(5);
  return options;
}

schedule::Decision ToServer(const schedule::Decision& heard,
                            const std::map<int64_t, schedule::Plan>& plans) {
  schedule::Decision last = AsSent(heard);
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

StandInWorld::StandInWorld(uint64_t seed, Disloyalty disloyalty)
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
  visits_.resize(ranks);
  schedule::FallbackSchedule::Options options;
  options.world_size = world_;
  options.plan = [this]() { return plans_.at(Rank(0).plan_version); };
  stand_in_ = std::make_unique<schedule::FallbackSchedule>(std::move(options));
  Start(/*resumed=*/false);
}

StandInWorld::Result StandInWorld::Run() {
  int events = 0;
  while (!Done() && result_.violation.empty()) {
    if (++events > kChaos) healed_ = true;
    if (events > kMostEvents) Violate("the ranks have come to a standstill");
    now_ += kEvent;
    HappenOnce();
  }
  result_.spells = stand_in_->spell();
  for (const auto& [round, outcome] : outcomes_) {
    if (outcome.decision.plan.has_value()) ++result_.plans;
  }
  return result_;
}

bool StandInWorld::Done() const {
  return std::all_of(workers_.begin(), workers_.end(), [&](const Worker& one) {
    return one.agent.round() >= rounds_;
  });
}

void StandInWorld::Violate(absl::string_view what) {
  if (result_.violation.empty()) result_.violation = std::string(what);
}

void StandInWorld::HappenOnce() {
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
      } else if (worker.stand_in == nullptr && (worker.lost || worker.bound)) {
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
      stream->to_stand_in ? dice_.Chance(0.005) : dice_.Chance(0.02);
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

void StandInWorld::Work(int rank) {
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

void StandInWorld::NoteActed(int rank, int64_t round,
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

void StandInWorld::Connect(int rank, bool to_stand_in) {
  auto stream = std::make_unique<Stream>();
  stream->id = ++last_stream_;
  stream->rank = rank;
  stream->to_stand_in = to_stand_in;
  stream->coordinator = coordinator_;
  stream->up.emplace_back();
  Worker& worker = Rank(rank);
  (to_stand_in ? worker.stand_in : worker.coordinator) = stream.get();
  if (!to_stand_in) worker.attached = false;
  if (to_stand_in) worker.visiting = false;
  streams_.push_back(std::move(stream));
}

void StandInWorld::Pump(int rank) {
  Worker& worker = Rank(rank);
  if (worker.leader == Leader::kNobody) return;
  Stream* const stream =
      worker.leader == Leader::kStandIn ? worker.stand_in : worker.coordinator;
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

void StandInWorld::SayPosition(int rank, Stream* stream) {
  const auto heard = Rank(rank).agent.heard();
  if (!heard.has_value()) return;
  Up up;
  up.kind = Up::Kind::kPosition;
  up.last = ToServer(*heard, plans_);
  stream->up.push_back(std::move(up));
}

void StandInWorld::FollowCoordinator(int rank) {
  Worker& worker = Rank(rank);
  worker.leader = Leader::kCoordinator;
  if (worker.spell > 0 && disloyalty_ != Disloyalty::kHidesSpells) {
    Up up;
    up.kind = Up::Kind::kStoodIn;
    up.spell = worker.spell;
    worker.coordinator->up.push_back(std::move(up));
  }
  SayPosition(rank, worker.coordinator);
  worker.agent.OnConnected();
  Pump(rank);
}

void StandInWorld::FollowStandIn(int rank) {
  Worker& worker = Rank(rank);
  worker.leader = Leader::kStandIn;
  worker.bound = true;
  worker.spell = worker.visit_spell;
  SayPosition(rank, worker.stand_in);
  worker.agent.OnConnected();
  Pump(rank);
}

void StandInWorld::OnCoordinatorAttached(int rank) {
  Worker& worker = Rank(rank);
  worker.attached = true;
  worker.lost = false;
  if (disloyalty_ == Disloyalty::kLeavesUnheard && worker.bound) {
    worker.bound = false;
    if (worker.stand_in != nullptr) worker.stand_in->rank_open = false;
    worker.stand_in = nullptr;
    worker.visiting = false;
  }
  if (!worker.bound) return FollowCoordinator(rank);
  worker.leader = Leader::kNobody;
  if (!worker.visiting) return;
  Up up;
  up.kind = Up::Kind::kLetGo;
  worker.stand_in->up.push_back(std::move(up));
}

void StandInWorld::OnCoordinatorGone(int rank) {
  Worker& worker = Rank(rank);
  worker.coordinator = nullptr;
  if (!std::exchange(worker.attached, false)) return;
  worker.lost = true;
  worker.leader = Leader::kNobody;
}

void StandInWorld::ReadAtRank(Stream* stream) {
  if (!stream->rank_open) return;
  if (!stream->down.empty()) {
    const Down down = std::move(stream->down.front());
    stream->down.pop_front();
    return OnDown(stream, down);
  }
  // It finds out that nobody is there.
  if (stream->server_open) return;
  Down end;
  end.kind = Down::Kind::kEnd;
  OnDown(stream, end);
}

void StandInWorld::OnDown(Stream* stream, const Down& down) {
  const int rank = stream->rank;
  Worker& worker = Rank(rank);
  const bool of_stand_in = stream->to_stand_in;
  if (down.kind == Down::Kind::kEnd) {
    stream->rank_open = false;
    if (!of_stand_in) return OnCoordinatorGone(rank);
    worker.stand_in = nullptr;
    worker.visiting = false;
    if (worker.leader == Leader::kStandIn) worker.leader = Leader::kNobody;
    if (!down.let_go) return;
    worker.bound = false;
    if (!worker.lost) FollowCoordinator(rank);
    return;
  }
  if (down.kind == Down::Kind::kAttached) {
    if (!of_stand_in) return OnCoordinatorAttached(rank);
    worker.visiting = true;
    worker.visit_spell = down.spell;
    if (worker.lost) return FollowStandIn(rank);
    Up up;
    up.kind = Up::Kind::kLetGo;
    stream->up.push_back(std::move(up));
    return;
  }
  const Leader from = of_stand_in ? Leader::kStandIn : Leader::kCoordinator;
  const bool both = disloyalty_ == Disloyalty::kListensToBoth;
  if (worker.leader != from && !both) return;
  if (down.kind == Down::Kind::kGrant) {
    return worker.agent.OnGrant(down.round);
  }
  const bool old = !of_stand_in && down.spell < worker.spell;
  if (old && disloyalty_ != Disloyalty::kHearsOldSpells &&
      disloyalty_ != Disloyalty::kHidesSpells && !both) {
    return;
  }
  worker.agent.OnDecision(down.decision);
}

// Both ends find out by themselves.
void StandInWorld::Break(Stream* stream) {
  if (dice_.Chance(0.5)) stream->up.clear();
  if (!stream->rank_open) return;
  stream->rank_open = false;
  const int rank = stream->rank;
  if (!stream->to_stand_in) return OnCoordinatorGone(rank);
  Worker& worker = Rank(rank);
  worker.stand_in = nullptr;
  worker.visiting = false;
  if (worker.leader == Leader::kStandIn) worker.leader = Leader::kNobody;
}

// ---- whoever decides

void StandInWorld::SayDown(Stream* stream, Down down) {
  if (stream != nullptr && stream->server_open) {
    stream->down.push_back(std::move(down));
  }
}

StandInWorld::Down StandInWorld::DownOf(
    const schedule::StepAgreement::Message& message, int64_t spell) {
  Down down;
  down.round = message.round;
  down.spell = spell;
  if (message.kind == schedule::StepAgreement::Message::Kind::kGrant) {
    down.kind = Down::Kind::kGrant;
    return down;
  }
  down.kind = Down::Kind::kDecision;
  down.decision = AsSent(message.decision);
  return down;
}

void StandInWorld::ReadAtServer(Stream* stream) {
  if (!stream->server_open) return;
  if (!stream->to_stand_in && stream->coordinator != coordinator_) {
    stream->server_open = false;  // it died with its coordinator
    return;
  }
  if (!stream->up.empty()) {
    const Up up = std::move(stream->up.front());
    stream->up.pop_front();
    return stream->to_stand_in ? HearAtStandIn(stream, up)
                               : HearAtCoordinator(stream, up);
  }
  if (stream->rank_open) return;
  // It finds out that the rank is gone.
  stream->server_open = false;
  const auto rank = static_cast<size_t>(stream->rank);
  if (!stream->to_stand_in && attached_[rank] == stream) {
    attached_[rank] = nullptr;
  }
  if (stream->to_stand_in && visits_[rank] == stream) {
    visits_[rank] = nullptr;
    stand_in_->OnGone(stream->rank);
  }
}

void StandInWorld::Crash() {
  if (agreement_ == nullptr) return;
  ++result_.crashes;
  agreement_.reset();
  ++coordinator_;
  for (Stream*& stream : attached_) stream = nullptr;
  for (const auto& stream : streams_) {
    if (!stream->to_stand_in) stream->server_open = false;
  }
}

void StandInWorld::Start(bool resumed) {
  spell_ = 0;
  speakers_.assign(static_cast<size_t>(world_), 0);
  barred_.assign(static_cast<size_t>(world_), 0);
  MakeAgreement(resumed);
}

void StandInWorld::MakeAgreement(bool resumed) {
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
std::optional<schedule::Plan> StandInWorld::NextPlan(int64_t /*step*/) {
  if (pending_.empty()) return std::nullopt;
  plan_before_ = plan_;
  plan_ = pending_.front();
  pending_.erase(pending_.begin());
  return plan_;
}

bool StandInWorld::Speaks(const Stream& stream) {
  const auto rank = static_cast<size_t>(stream.rank);
  if (stream.id <= barred_[rank] || stream.id < speakers_[rank]) return false;
  speakers_[rank] = stream.id;
  return true;
}

void StandInWorld::BeginSpell(int64_t spell, int rank) {
  if (spell <= spell_) return;
  spell_ = spell;
  for (int other = 0; other < world_; ++other) {
    const auto index = static_cast<size_t>(other);
    if (other == rank) continue;
    barred_[index] = std::max(barred_[index], speakers_[index]);
    speakers_[index] = 0;
    Stream* const stream = std::exchange(attached_[index], nullptr);
    if (stream == nullptr) continue;
    barred_[index] = std::max(barred_[index], stream->id);
    Down end;
    end.kind = Down::Kind::kEnd;
    SayDown(stream, end);
    stream->server_open = false;
  }
  MakeAgreement(/*resumed=*/true);
}

void StandInWorld::HearAtCoordinator(Stream* stream, const Up& up) {
  const int rank = stream->rank;
  const auto index = static_cast<size_t>(rank);
  if (up.kind == Up::Kind::kHello) {
    if (attached_[index] != nullptr) attached_[index]->server_open = false;
    attached_[index] = stream;
    Down attached;
    return SayDown(stream, attached);
  }
  if (!Speaks(*stream)) return;
  switch (up.kind) {
    case Up::Kind::kStoodIn:
      return BeginSpell(up.spell, rank);
    case Up::Kind::kPosition:
      return SayAsCoordinator(agreement_->OnPosition(rank, up.last, now_));
    case Up::Kind::kTicket:
      return SayAsCoordinator(agreement_->OnTicket(rank, up.ticket, now_));
    case Up::Kind::kVote:
      return SayAsCoordinator(agreement_->OnVote(rank, up.vote, now_));
    default:
      return;
  }
}

void StandInWorld::SayAsCoordinator(
    const schedule::StepAgreement::Messages& messages) {
  using Message = schedule::StepAgreement::Message;
  for (const Message& message : messages) {
    if (message.kind != Message::Kind::kGrant &&
        message.kind != Message::Kind::kDecision) {
      continue;
    }
    const Down down = DownOf(message, spell_);
    const bool all = message.rank == Message::kAllRanks;
    if (all && message.kind == Message::Kind::kDecision) {
      ++result_.by_coordinator;
      decided_[message.round] = Text(down.decision);
    }
    for (int rank = 0; rank < world_; ++rank) {
      if (!all && message.rank != rank) continue;
      SayDown(attached_[static_cast<size_t>(rank)], down);
    }
  }
  if (agreement_->failure().ok()) return;
  Violate(absl::StrCat("all ranks are honest, and it failed: ",
                       agreement_->failure().message()));
}

void StandInWorld::EndVisit(int rank, bool let_go) {
  Stream*& visit = visits_[static_cast<size_t>(rank)];
  if (visit == nullptr) return;
  Down end;
  end.kind = Down::Kind::kEnd;
  end.let_go = let_go;
  SayDown(visit, end);
  visit->server_open = false;
  visit = nullptr;
}

void StandInWorld::HearAtStandIn(Stream* stream, const Up& up) {
  const int rank = stream->rank;
  switch (up.kind) {
    case Up::Kind::kHello: {
      const schedule::FallbackSchedule::Arrival arrival =
          stand_in_->OnArrival(rank);
      for (int other : arrival.sent_away) EndVisit(other, false);
      EndVisit(rank, false);
      visits_[static_cast<size_t>(rank)] = stream;
      Down attached;
      attached.spell = arrival.spell;
      return SayDown(stream, attached);
    }
    case Up::Kind::kPosition:
      return SayAsStandIn(stand_in_->OnPosition(rank, kTrain, up.last, now_));
    case Up::Kind::kTicket:
      return SayAsStandIn(stand_in_->OnTicket(rank, kTrain, up.ticket, now_));
    case Up::Kind::kVote:
      return SayAsStandIn(stand_in_->OnVote(rank, kTrain, up.vote, now_));
    case Up::Kind::kLetGo:
      stand_in_->OnGone(rank);
      return EndVisit(rank, true);
    default:
      return;
  }
}

void StandInWorld::SayAsStandIn(
    const schedule::FallbackSchedule::Messages& messages) {
  using schedule::Message;
  for (const Message& message : messages) {
    const bool all = message.rank == Message::kAllRanks;
    if (all && message.kind == Message::Kind::kDecision) ++result_.by_stand_in;
    for (int rank = 0; rank < world_; ++rank) {
      if (!all && message.rank != rank) continue;
      SayDown(visits_[static_cast<size_t>(rank)],
              DownOf(message, stand_in_->spell()));
    }
  }
}

}  // namespace coxswain::simulation
