#include "tests/simulation/membership_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "server/membership/liveness.h"

namespace coxswain::simulation {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(250);

}  // namespace

MembershipWorld::MembershipWorld(const MembershipHistory& history,
                                 MembershipSabotage sabotage)
    : history_(history),
      sabotage_(sabotage),
      dice_(history.seed, 3),
      store_(history.slowest_write, &timeline_, &dice_),
      referee_(history_, &timeline_, &store_),
      deliver_([this](int stream, const server::AttachEvent& event) {
        Deliver(stream, event);
      }),
      streams_(1),
      lost_(history.lost),
      doubled_(history.doubled) {
  COXSWAIN_CHECK(history_.options.Validate().ok());
  for (int i = 0; i < history_.places; ++i) {
    Place& place = places_.emplace_back();
    place.identity = {absl::StrCat("node-", i / 4), i % 4};
  }
}

MembershipWorld::Result MembershipWorld::Run() {
  store_.set_failing(history_.failing_writes);
  StartCoordinator();
  const uint64_t launcher = dice_.Chance(0.1) ? 0 : launchers_++;
  for (int i = 0; i < history_.places; ++i) {
    StartLater(i, launcher,
               dice_.Between(absl::ZeroDuration(), history_.slowest_start));
  }
  ScheduleTroubles();
  RunUntil(
      absl::InfiniteDuration(),
      [this] { return now() >= absl::UnixEpoch() + history_.troubled; }, "");
  CalmDown();
  RunUntil(
      Longest(), [this] { return IsSettled(); },
      "a worker that asks is in no generation");
  LetAllLeave();
  RunUntil(
      Longest(), [this] { return IsOver(); }, "a worker does not end");
  StartAgain();
  RunUntil(
      Longest(), [this] { return IsOver(); },
      "a worker that is started again does not end");
  counts_.violation = referee_.violation();
  counts_.generations = referee_.generations();
  counts_.losses = referee_.losses();
  counts_.processes = static_cast<int64_t>(processes_.size());
  counts_.events = timeline_.handled();
  return counts_;
}

void MembershipWorld::RunUntil(absl::Duration longest,
                               const std::function<bool()>& holds,
                               const std::string& what) {
  const absl::Time deadline = now() + longest;
  // Looked at from time to time.
  absl::Time look = now();
  while (referee_.violation().empty()) {
    if (now() >= look) {
      if (holds()) return;
      if (now() > deadline) return referee_.Violate(what);
      look = now() + kTick;
    }
    COXSWAIN_CHECK(timeline_.Step());
  }
}

absl::Duration MembershipWorld::Delay() {
  return dice_.Between(absl::Microseconds(100), history_.slowest_message);
}

absl::Duration MembershipWorld::Pause() {
  return dice_.Between(absl::Milliseconds(100), absl::Seconds(2));
}

// What may have to pass one after the other before everybody is served: the
// loss of one that does not come back, once for each, is seen at once.
absl::Duration MembershipWorld::Longest() const {
  const server::MembershipOptions& options = history_.options;
  return 4 * (options.lease + options.reattach_grace + options.rejoin_grace +
              options.survivor_timeout + options.catch_up_timeout +
              history_.join_timeout + history_.slowest_start +
              history_.slowest_abort) +
         absl::Minutes(1);
}

void MembershipWorld::ScheduleTroubles() {
  for (int i = 0; i < history_.troubles; ++i) {
    const auto trouble = static_cast<Trouble>(dice_.Int(0, kTroubles - 1));
    In(dice_.Between(absl::ZeroDuration(), history_.troubled),
       [this, trouble] { Make(trouble); });
  }
}

MembershipWorld::Process* MembershipWorld::PickProcess(Process::State state) {
  std::vector<Process*> found;
  for (const Place& place : places_) {
    if (place.process != nullptr && place.process->state == state) {
      found.push_back(place.process);
    }
  }
  if (found.empty()) return nullptr;
  return found[static_cast<size_t>(
      dice_.Int(0, static_cast<int>(found.size()) - 1))];
}

MembershipWorld::Process* MembershipWorld::PickMember() {
  return PickProcess(Process::State::kMember);
}

void MembershipWorld::Make(Trouble trouble) {
  if (phase_ != Phase::kTroubles) return;
  Process* const member = PickMember();
  const bool up = coordinator_ != nullptr && !stopping_;
  switch (trouble) {
    case Trouble::kKill: {
      Process* const asking = PickProcess(Process::State::kAsking);
      const bool waits = asking != nullptr && dice_.Chance(0.4);
      if (waits) return Kill(asking);
      if (member != nullptr) Kill(member);
      return;
    }
    case Trouble::kStall:
      if (member == nullptr) return;
      member->stalled_until =
          now() + dice_.Between(absl::Seconds(1), 2 * history_.options.lease);
      return;
    case Trouble::kBreakStream:
      if (member != nullptr) Break(member->stream);
      return;
    case Trouble::kBreakAll:
      for (const Place& place : places_) {
        if (place.process != nullptr) Break(place.process->stream);
      }
      return;
    case Trouble::kCrash:
      return StopCoordinator(/*crash=*/true);
    case Trouble::kStop:
      return StopCoordinator(/*crash=*/false);
    case Trouble::kStandStill:
      stands_still_until_ =
          now() + dice_.Between(absl::Seconds(1), 2 * history_.options.lease);
      return;
    case Trouble::kFailWrites:
      store_.set_failing(0.7);
      return In(absl::Seconds(dice_.Int(1, 5)),
                [this] { store_.set_failing(history_.failing_writes); });
    case Trouble::kRegroup:
      return Regroup("an operator");
    case Trouble::kDrain:
      if (member == nullptr) return;
      Regroup("a rank is drained");
      member->for_good = true;
      return;
    case Trouble::kFail:
      if (member != nullptr) Leave(member, true, dice_.Chance(0.5));
      return;
    case Trouble::kGiveUp: {
      // It wanted to come back.
      Process* const asking = PickProcess(Process::State::kAsking);
      if (asking == nullptr || asking->generation == Generation(0)) return;
      Forget(*asking);
      return Leave(asking, false, false);
    }
    case Trouble::kAbort:
      if (up) coordinator_->Abort("a mismatch");
      return;
    case Trouble::kAccuse: {
      if (!up || member == nullptr || member->stream == 0) return;
      const Stream& stream = StreamOf(member->stream);
      if (stream.term != coordinator_->term()) return;
      return coordinator_->NotePeerBroken(stream.attachment,
                                          dice_.Int(0, history_.max - 1));
    }
    case Trouble::kCutOff: {
      if (!up || member == nullptr || member->stream == 0) return;
      const Stream& stream = StreamOf(member->stream);
      if (stream.term != coordinator_->term()) return;
      return coordinator_->CutOffOthers(stream.attachment);
    }
    case Trouble::kPlan:
      if (up) coordinator_->ChangePlan();
      return;
    case Trouble::kNewLauncher: {
      const int place = dice_.Int(0, history_.places - 1);
      return StartLater(place, launchers_++, absl::ZeroDuration());
    }
  }
}

void MembershipWorld::CalmDown() {
  phase_ = Phase::kCalm;
  lost_ = doubled_ = 0;
  store_.set_failing(0);
  Refill();
}

void MembershipWorld::Refill() {
  for (int i = 0; i < history_.places; ++i) {
    const Place& place = places_[static_cast<size_t>(i)];
    if (place.starting > 0) continue;
    if (place.process != nullptr && !place.process->ended()) continue;
    StartLater(i, launchers_++, Pause());
  }
}

bool MembershipWorld::IsSettled() const {
  if (coordinator_ == nullptr || stopping_) return false;
  if (!coordinator_->running()) return false;
  const Generation generation = coordinator_->machine().generation();
  for (const Place& place : places_) {
    if (place.process == nullptr || place.process->ended()) return false;
    const Process& process = *place.process;
    if (process.state == Process::State::kMember) {
      if (process.generation != generation || process.stream == 0) return false;
      const Stream& stream = streams_[static_cast<size_t>(process.stream)];
      if (stream.attachment == 0 || stream.ended || stream.broken ||
          stream.term != coordinator_->term()) {
        return false;
      }
    } else if (process.state != Process::State::kAsking ||
               static_cast<int>(coordinator_->machine().members().size()) <
                   history_.max) {
      return false;
    }
  }
  return true;
}

void MembershipWorld::LetAllLeave() {
  phase_ = Phase::kAllLeave;
  for (Process& process : processes_) {
    if (process.state != Process::State::kMember) continue;
    In(Pause(), [this, leaving = &process] {
      if (leaving->state == Process::State::kMember) {
        Leave(leaving, false, false);
      }
    });
  }
  if (dice_.Chance(0.3)) {
    In(Pause(), [this] { StopCoordinator(/*crash=*/dice_.Chance(0.7)); });
  }
}

bool MembershipWorld::IsOver() const {
  if (coordinator_ == nullptr || stopping_) return false;
  for (const Place& place : places_) {
    if (place.starting > 0) return false;
  }
  return std::all_of(processes_.begin(), processes_.end(),
                     [](const Process& process) { return process.ended(); });
}

void MembershipWorld::StartAgain() {
  phase_ = Phase::kEpilogue;
  if (!referee_.finished()) return;
  ++counts_.finished;
  for (int i = 0; i < std::min(history_.places, 8); ++i) {
    const Process* const last = places_[static_cast<size_t>(i)].process;
    if (last != nullptr) StartLater(i, last->launcher, absl::ZeroDuration());
  }
}

void MembershipWorld::StartCoordinator() {
  MembershipSurroundings around;
  around.history = &history_;
  around.sabotage = sabotage_;
  around.timeline = &timeline_;
  around.dice = &dice_;
  around.store = &store_;
  around.referee = &referee_;
  around.on_regroup_wanted = [this](const std::string& reason) {
    if (reason.empty() || std::exchange(regroup_asked_, true)) return;
    In(dice_.Between(absl::ZeroDuration(), absl::Seconds(2)), [this, reason] {
      regroup_asked_ = false;
      if (phase_ == Phase::kTroubles || phase_ == Phase::kCalm) {
        Regroup(reason);
      }
    });
  };
  around.on_catch_up_wanted = [this](Incarnation spare) {
    catching_up_.push_back(spare);
    if (catching_up_.size() > kMaxReports) catching_up_.pop_front();
  };
  coordinator_ = std::make_unique<MembershipCoordinator>(around);
  // The ranks bring what they were sent last, unless none has received it.
  if (referee_.regroups() && dice_.Chance(0.5)) {
    coordinator_->NoteRegroup(referee_.received_regroup());
  }
  last_tick_ = now();
  In(kTick, [this, ticks = ++ticks_] {
    if (ticks == ticks_) Tick();
  });
}

void MembershipWorld::Tick() {
  const absl::Duration left = stands_still_until_ - now();
  if (left <= absl::ZeroDuration()) {
    coordinator_->Tick(
        server::WasPaused(now(), last_tick_, history_.options.lease));
    last_tick_ = now();
    if (phase_ == Phase::kCalm) Refill();
    if (dice_.Chance(0.02)) {
      std::vector<Incarnation> received;
      for (const Place& place : places_) {
        if (place.process == nullptr || place.process->ended()) continue;
        if (Acts(*place.process))
          received.push_back(place.process->incarnation);
      }
      coordinator_->NoteSigns(received);
    }
  }
  In(std::max(kTick, left), [this, ticks = ticks_] {
    if (ticks == ticks_) Tick();
  });
}

void MembershipWorld::Regroup(const std::string& reason) {
  if (coordinator_ == nullptr || stopping_) return;
  ++counts_.regroups;
  coordinator_->Regroup(reason);
}

void MembershipWorld::StopCoordinator(bool crash) {
  if (coordinator_ == nullptr || stopping_) return;
  ++ticks_;
  if (crash) {
    ++counts_.crashes;
    store_.Crash();
    return GoDown();
  }
  ++counts_.stops;
  stopping_ = true;
  coordinator_->Shutdown();
  In(dice_.Between(absl::ZeroDuration(), absl::Seconds(2)), [this] {
    store_.Drain();
    GoDown();
  });
}

void MembershipWorld::GoDown() {
  stopping_ = false;
  referee_.OnStopped();
  coordinator_.reset();
  // Their connections are broken: they find out by themselves.
  for (Process& process : processes_) {
    if (process.ended()) continue;
    Break(process.stream);
    if (process.state == Process::State::kAsking) {
      AskLater(&process, process.calls);
    } else if (process.state == Process::State::kLeaving) {
      LeaveAgain(&process, process.calls);
    }
  }
  In(dice_.Between(absl::Milliseconds(10), absl::Seconds(5)),
     [this] { StartCoordinator(); });
}

}  // namespace coxswain::simulation
