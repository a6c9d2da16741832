// The world's part that is the streams of members, and what they do with what
// they are sent.
#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "schedule/sign_interval.h"
#include "tests/simulation/membership_world.h"

namespace coxswain::simulation {

void MembershipWorld::Attach(Process* process) {
  if (process->state != Process::State::kMember) return;
  const int number = static_cast<int>(streams_.size());
  Stream& stream = streams_.emplace_back();
  stream.process = process;
  stream.generation = process->generation;
  process->stream = number;
  if (dice_.Chance(lost_)) return Break(number);
  ToCoordinator([this, number] { BringAttach(number); },
                [this, number] { Break(number); });
  In(history_.interval(), [this, number] { Beat(number); });
}

void MembershipWorld::BringAttach(int number) {
  Stream& stream = StreamOf(number);
  absl::StatusOr<uint64_t> attached = absl::UnavailableError("stopping");
  if (!stopping_) {
    attached = coordinator_->Attach(
        stream.generation, stream.process->incarnation, {number, &deliver_});
  }
  if (!attached.ok()) {
    return In(Delay(), [this, number, status = attached.status()] {
      OnAttachRefused(number, status);
    });
  }
  stream.attachment = *attached;
  stream.term = coordinator_->term();
  coordinator_->NoteFallback(
      *attached, dice_.Chance(0.8) ? stream.process->address() : "");
  if (stream.broken || stream.process->ended()) DetachLater(number);
  // It asks for the decision that it has not received.
  if (referee_.regroups()) Regroup("decided before");
}

void MembershipWorld::OnAttachRefused(int number, const absl::Status& status) {
  Stream& stream = StreamOf(number);
  if (stream.process->stream != number || stream.broken) return;
  if (!absl::IsFailedPrecondition(status)) return Break(number);
  stream.ended = true;
  GoOn(stream.process, stream.generation);
}

void MembershipWorld::Beat(int number) {
  Stream& stream = StreamOf(number);
  Process* const process = stream.process;
  if (stream.broken || stream.ended || process->ended() ||
      process->stream != number) {
    return;
  }
  if (Acts(*process)) {
    ++process->step;
    In(Delay(), [this, number] { BringBeat(number); });
  }
  In(history_.interval(), [this, number] { Beat(number); });
}

void MembershipWorld::BringBeat(int number) {
  const Stream& stream = StreamOf(number);
  if (coordinator_ == nullptr || stopping_ || stream.attachment == 0 ||
      stream.term != coordinator_->term()) {
    return;
  }
  const absl::Duration left = stands_still_until_ - now();
  if (left > absl::ZeroDuration()) {
    return In(left, [this, number] { BringBeat(number); });
  }
  server::Progress progress;
  progress.step = stream.process->step;
  progress.interval = history_.interval();
  // Others may be what it waits for, or it computes.
  if (history_.stall_timeout < absl::InfiniteDuration() && dice_.Chance(0.9)) {
    progress.waiting = history_.stall_timeout;
  }
  for (const Incarnation spare : catching_up_) {
    progress.newcomers.push_back({spare, dice_.Chance(0.1), ""});
  }
  coordinator_->Heartbeat(stream.attachment, progress);
}

void MembershipWorld::ShowLife(int number) {
  const Stream& stream = StreamOf(number);
  const Process& process = *stream.process;
  const bool member = process.state == Process::State::kMember ||
                      process.state == Process::State::kAsking;
  if (stream.broken || process.stream != number || !member ||
      process.generation != stream.generation) {
    return;
  }
  if (Acts(process)) {
    ToCoordinator([this, number] { BringSignOfLife(number); }, [] {});
  }
  In(schedule::SignInterval(history_.interval(), history_.max),
     [this, number] { ShowLife(number); });
}

void MembershipWorld::BringSignOfLife(int number) {
  Stream& stream = StreamOf(number);
  if (stopping_ || stream.broken) return;
  const auto attached = coordinator_->Attach(
      stream.generation, stream.process->incarnation, {number, &deliver_});
  // A coordinator that does not know of the end takes it back. It goes.
  if (!attached.ok()) return;
  stream.broken = true;
  coordinator_->Detach(*attached);
}

void MembershipWorld::Break(int number) {
  if (number == 0 || StreamOf(number).broken) return;
  Stream& stream = StreamOf(number);
  stream.broken = true;
  if (stream.attachment != 0) DetachLater(number);
  AttachAgain(number);
}

void MembershipWorld::DetachLater(int number) {
  // Or never: its lease ends, or it attaches again.
  if (dice_.Chance(0.2)) return;
  In(dice_.Between(absl::ZeroDuration(), absl::Seconds(2)), [this, number] {
    const Stream& stream = StreamOf(number);
    if (coordinator_ == nullptr || coordinator_->term() != stream.term) return;
    coordinator_->Detach(stream.attachment);
  });
}

void MembershipWorld::AttachAgain(int number) {
  In(Pause(), [this, number] {
    Process* const process = StreamOf(number).process;
    if (process->stream == number) Attach(process);
  });
}

void MembershipWorld::Deliver(int number, const server::AttachEvent& event) {
  Stream& stream = StreamOf(number);
  // In their order.
  stream.last_event = std::max(now() + Delay(), stream.last_event);
  In(stream.last_event - now(),
     [this, number, event] { OnEvent(number, event); });
}

void MembershipWorld::OnEvent(int number, const server::AttachEvent& event) {
  Stream& stream = StreamOf(number);
  Process* const process = stream.process;
  if (stream.broken || stream.ended || process->ended() ||
      process->stream != number) {
    return;
  }
  if (!Acts(*process)) {
    return In(process->stalled_until - now(),
              [this, number, event] { OnEvent(number, event); });
  }
  if (const auto* message = std::get_if<schedule::Message>(&event)) {
    if (message->decision.regroup.empty()) return;
    return In(dice_.Between(absl::ZeroDuration(), absl::Seconds(3)),
              [this, process, generation = stream.generation] {
                MakeWay(process, generation);
              });
  }
  const auto& sent = std::get<server::MembershipEvent>(event);
  using Kind = server::MembershipEvent::Kind;
  if (sent.kind == Kind::kAbort) {
    stream.aborted = true;
    if (history_.stall_timeout < absl::InfiniteDuration()) ShowLife(number);
    return In(dice_.Between(absl::ZeroDuration(), history_.slowest_abort),
              [this, process, generation = stream.generation] {
                GoOn(process, generation);
              });
  }
  if (sent.kind != Kind::kClosed) return;
  stream.ended = true;
  if (stream.aborted || sent.status.ok()) return;
  AttachAgain(number);
}

}  // namespace coxswain::simulation
