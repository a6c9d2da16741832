#include "cli/launch/process_table.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace coxswain {

std::string WorkerExit::ToString() const {
  if (signal == 0) return absl::StrCat("exited with code ", exit_code);
  const char* name = sigabbrev_np(signal);
  return absl::StrCat("was killed by signal ", signal,
                      name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
}

ProcessTable::ProcessTable(int workers, LaunchGraces graces,
                           RestartPolicy restarts)
    : graces_(graces), restarts_(restarts), slots_(workers) {}

void ProcessTable::Exited(absl::Time now, const WorkerExit& exit) {
  Slot& slot = slots_[exit.slot];
  COXSWAIN_CHECK(slot.state == State::kRunning);
  slot.last = exit;
  went_on_ = exit.ok();
  if (exit.ok()) {
    slot.state = State::kSucceeded;
  } else if (slot.restarts < restarts_.most && !stopping()) {
    Pause(now, &slot);
  } else {
    Fail(now, &slot);
  }
}

void ProcessTable::Pause(absl::Time now, Slot* slot) {
  if (now - slot->started >= restarts_.calm) slot->short_lives = 0;
  absl::Duration pause =
      slot->short_lives == 0 ? absl::ZeroDuration() : restarts_.pause;
  for (int i = 1; i < slot->short_lives && pause < restarts_.longest_pause; ++i)
    pause *= 2;
  ++slot->short_lives;
  slot->state = State::kPausing;
  slot->restart_at = now + std::min(pause, restarts_.longest_pause);
}

void ProcessTable::Fail(absl::Time now, Slot* slot) {
  slot->state = State::kFailed;
  slot->restart_at = absl::InfiniteFuture();
  if (first_failure_.has_value()) return;
  first_failure_ = slot->last;
  if (!elastic()) failed_at_ = now;
}

void ProcessTable::GiveUpRestarts(absl::Time now) {
  for (Slot& slot : slots_) {
    if (slot.state == State::kPausing) Fail(now, &slot);
  }
}

void ProcessTable::StopRequested(absl::Time now, int signal) {
  stop_at_ = std::min(stop_at_, now);
  GiveUpRestarts(now);
  if (signal == SIGINT && ++interrupts_ == 2) kill_now_at_ = now;
}

LaunchDecision ProcessTable::Decide(absl::Time now) {
  LaunchDecision decision;
  if (AllEnded() || stage_ == Stage::kKilled) return decision;
  DecideSignal(now, &decision);
  DecideStarts(now, &decision);
  return decision;
}

void ProcessTable::DecideSignal(absl::Time now, LaunchDecision* decision) {
  const absl::Time terminate_at = failed_at_ + graces_.exit;
  const absl::Time stopped_too_long = stop_at_ + graces_.stop;
  const absl::Time kill_at =
      std::min({kill_now_at_, stopped_too_long, terminate_at + graces_.stop});
  if (now >= kill_at) {
    stage_ = Stage::kKilled;
    decision->signal = SIGKILL;
    decision->reason =
        now >= kill_now_at_
            ? "interrupted twice"
            : absl::StrCat("still running ", absl::FormatDuration(graces_.stop),
                           " after the request to stop");
    return;
  }
  if (stage_ == Stage::kRunning && now >= terminate_at) {
    stage_ = Stage::kTerminated;
    decision->signal = SIGTERM;
    decision->reason =
        absl::StrCat("still running ", absl::FormatDuration(graces_.exit),
                     " after another worker failed");
  }
  decision->next =
      stage_ == Stage::kRunning ? std::min(terminate_at, kill_at) : kill_at;
}

void ProcessTable::DecideStarts(absl::Time now, LaunchDecision* decision) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.state != State::kPausing) continue;
    if (now < slot.restart_at) {
      decision->next = std::min(decision->next, slot.restart_at);
      continue;
    }
    slot.state = State::kRunning;
    slot.restart_at = absl::InfiniteFuture();
    slot.started = now;
    ++slot.restarts;
    decision->start.push_back(static_cast<int>(i));
  }
}

bool ProcessTable::Any(State state) const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [&](const Slot& slot) { return slot.state == state; });
}

bool ProcessTable::AllEnded() const {
  return !Any(State::kRunning) && !Any(State::kPausing);
}

std::vector<int> ProcessTable::Failed() const {
  std::vector<int> failed;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].state == State::kFailed)
      failed.push_back(static_cast<int>(i));
  }
  return failed;
}

int ProcessTable::ExitStatus() const {
  if (!first_failure_.has_value() || (elastic() && went_on_)) return 0;
  return first_failure_->Status();
}

}  // namespace coxswain
