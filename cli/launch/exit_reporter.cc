#include "cli/launch/exit_reporter.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/backoff.h"
#include "base/logging.h"

namespace coxswain {
namespace {

// Between two attempts: the survivors of a worker may wait for the report, and
// launchers are few, one for each host.
constexpr absl::Duration kMaxPause = absl::Milliseconds(300);

}  // namespace

ExitReporter::ExitReporter(std::shared_ptr<CoordinatorStub> stub,
                           const RetryPolicy& policy)
    : stub_(std::move(stub)), policy_(policy), thread_([this] { Run(); }) {}

ExitReporter::~ExitReporter() {
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    queue_.clear();
    changed_.NotifyAll();
  }
  // After that: what is given up must not be followed by the next one.
  cancel_.Raise(absl::CancelledError("the launcher ends"));
  thread_.join();
}

void ExitReporter::Report(v1::ReportExitRequest exit) {
  MutexLock lock(&mutex_);
  queue_.push_back(std::move(exit));
  changed_.NotifyAll();
}

v1::ReportExitResponse ExitReporter::AnswerOf(int slot) {
  MutexLock lock(&mutex_);
  const auto found = answers_.find(slot);
  return found == answers_.end() ? v1::ReportExitResponse() : found->second;
}

bool ExitReporter::Drain(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  return changed_.WaitFor(&mutex_, timeout,
                          [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                            return queue_.empty() && !busy_;
                          });
}

void ExitReporter::Run() {
  while (true) {
    v1::ReportExitRequest exit;
    {
      MutexLock lock(&mutex_);
      busy_ = false;
      changed_.NotifyAll();
      changed_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return closed_ || !queue_.empty();
      });
      if (closed_) return;
      exit = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
    }
    Deliver(exit);
  }
}

void ExitReporter::Deliver(const v1::ReportExitRequest& exit) {
  CallOptions options;
  options.timeout = kTimeout;
  options.cancel = &cancel_;
  Backoff pauses(policy_.base, std::min(policy_.cap, kMaxPause),
                 policy_.random);
  for (bool logged = false; cancel_.status().ok(); logged = true) {
    const auto answer = stub_->ReportExit(exit, options);
    const absl::Status& status = answer.status();
    if (status.ok()) {
      MutexLock lock(&mutex_);
      answers_[exit.identity().slot()] = *answer;
      return;
    }
    const bool repeat =
        IsWorthRepeating(status, &cancel_) || absl::IsDeadlineExceeded(status);
    if (!logged) {
      LogWarning(repeat ? "exit_not_reported_yet" : "exit_not_reported",
                 {{"worker", absl::StrCat(exit.identity().node(), "/",
                                          exit.identity().slot())},
                  {"coordinator", stub_->address()},
                  {"error", status.ToString()}});
    }
    if (!repeat || cancel_.WaitFor(pauses.Next())) return;
  }
}

}  // namespace coxswain
