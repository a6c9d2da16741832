#include "tests/support/process.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

std::vector<std::string> Environment(
    const std::map<std::string, std::string>& added) {
  std::vector<std::string> result;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!absl::StartsWith(text, "COXSWAIN_") &&
        added.count(text.substr(0, text.find('='))) == 0) {
      result.push_back(text);
    }
  }
  for (const auto& [name, value] : added) {
    result.push_back(absl::StrCat(name, "=", value));
  }
  return result;
}

int Poll(std::vector<pollfd>* watched, absl::Time deadline) {
  const timespec timeout = absl::ToTimespec(
      std::max(absl::ZeroDuration(), deadline - Clock::Real()->Now()));
  return ppoll(watched->data(), watched->size(), &timeout, nullptr);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Process>> Process::Start(Options options) {
  COXSWAIN_ASSIGN_OR_RETURN(
      std::unique_ptr<ChildProcess> child,
      ChildProcess::Start(options.command, Environment(options.environment)));
  return std::unique_ptr<Process>(new Process(std::move(child)));
}

void Process::Signal(int signal) {
  if (!ended_) kill(pid(), signal);
}

absl::StatusOr<Process::Exit> Process::Wait(absl::Duration timeout) {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  while (!ended_ || child_->stdout_pipe().valid() ||
         child_->stderr_pipe().valid()) {
    if (!Step(deadline)) {
      return absl::DeadlineExceededError(absl::StrCat(
          "process ", pid(),
          ended_ ? " has ended but its output has not" : " has not ended",
          " within ", absl::FormatDuration(timeout), Transcript()));
    }
  }
  return exit_;
}

absl::Status Process::WaitForStdout(absl::string_view text,
                                    absl::Duration timeout) {
  return WaitForText(out_, child_->stdout_pipe(), text, timeout);
}

absl::Status Process::WaitForStderr(absl::string_view text,
                                    absl::Duration timeout) {
  return WaitForText(err_, child_->stderr_pipe(), text, timeout);
}

absl::Status Process::WaitForText(const std::string& collected,
                                  const UniqueFd& pipe, absl::string_view text,
                                  absl::Duration timeout) {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  while (!absl::StrContains(collected, text)) {
    if (!pipe.valid()) {
      return absl::OutOfRangeError(
          absl::StrCat("the output ended without '", text, "'", Transcript()));
    }
    if (!Step(deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("no '", text, "' within ", absl::FormatDuration(timeout),
                       Transcript()));
    }
  }
  return absl::OkStatus();
}

bool Process::Step(absl::Time deadline) {
  std::vector<pollfd> watched = {
      {child_->stdout_pipe().get(), POLLIN, 0},  // -1 is passed over
      {child_->stderr_pipe().get(), POLLIN, 0},
      {ended_ ? -1 : child_->pidfd(), POLLIN, 0}};
  if (Poll(&watched, deadline) <= 0) return false;
  if (watched[0].revents != 0) Collect(&child_->stdout_pipe(), &out_);
  if (watched[1].revents != 0) Collect(&child_->stderr_pipe(), &err_);
  if (watched[2].revents != 0) {
    const ChildProcess::End end = child_->Reap();
    exit_ = {end.exit_code, end.signal};
    ended_ = true;
  }
  return true;
}

void Process::Collect(UniqueFd* pipe, std::string* collected) {
  char data[8192];
  const ssize_t got = read(pipe->get(), data, sizeof(data));
  if (got > 0) {
    collected->append(data, got);
  } else if (got == 0 || errno != EAGAIN) {
    pipe->Close();
  }
}

std::string Process::Transcript() const {
  return absl::StrCat("; stdout so far:\n", out_, "\nstderr so far:\n", err_);
}

bool WaitUntilEnded(pid_t pid, absl::Duration timeout) {
  const UniqueFd pidfd = OpenPidfd(pid);
  if (!pidfd.valid()) return errno == ESRCH;
  std::vector<pollfd> watched = {{pidfd.get(), POLLIN, 0}};
  return Poll(&watched, Clock::Real()->Now() + timeout) > 0;
}

}  // namespace coxswain
