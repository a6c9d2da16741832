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

ProcessTable::ProcessTable(int workers, LaunchGraces graces)
    : graces_(graces), running_(workers, true), left_(workers) {}

void ProcessTable::Exited(absl::Time now, const WorkerExit& exit) {
  COXSWAIN_CHECK(running_[exit.slot]);
  running_[exit.slot] = false;
  --left_;
  if (exit.ok() || first_failure_.has_value()) return;
  first_failure_ = exit;
  failed_at_ = now;
}

void ProcessTable::StopRequested(absl::Time now, int signal) {
  stop_at_ = std::min(stop_at_, now);
  if (signal == SIGINT && ++interrupts_ == 2) kill_now_at_ = now;
}

LaunchDecision ProcessTable::Decide(absl::Time now) {
  LaunchDecision decision;
  if (AllEnded() || stage_ == Stage::kKilled) return decision;

  const absl::Time terminate_at = failed_at_ + graces_.exit;
  const absl::Time stopped_too_long = stop_at_ + graces_.stop;
  const absl::Time kill_at =
      std::min({kill_now_at_, stopped_too_long, terminate_at + graces_.stop});
  if (now >= kill_at) {
    stage_ = Stage::kKilled;
    decision.signal = SIGKILL;
    decision.reason =
        now >= kill_now_at_
            ? "interrupted twice"
            : absl::StrCat("still running ", absl::FormatDuration(graces_.stop),
                           " after being told to stop");
    return decision;
  }
  if (stage_ == Stage::kRunning && now >= terminate_at) {
    stage_ = Stage::kTerminated;
    decision.signal = SIGTERM;
    decision.reason =
        absl::StrCat("still running ", absl::FormatDuration(graces_.exit),
                     " after another worker failed");
  }
  decision.next =
      stage_ == Stage::kRunning ? std::min(terminate_at, kill_at) : kill_at;
  return decision;
}

int ProcessTable::ExitStatus() const {
  return first_failure_.has_value() ? first_failure_->Status() : 0;
}

}  // namespace coxswain
