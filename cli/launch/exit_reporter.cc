#include "cli/launch/exit_reporter.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace coxswain {

ExitReporter::ExitReporter(std::shared_ptr<CoordinatorStub> stub)
    : stub_(std::move(stub)), thread_([this] { Run(); }) {}

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

bool ExitReporter::Drain(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  return changed_.WaitFor(&mutex_, timeout,
                          [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                            return queue_.empty() && !busy_;
                          });
}

void ExitReporter::Run() {
  CallOptions options;
  options.timeout = kTimeout;
  options.cancel = &cancel_;
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
    const auto response = stub_->ReportExit(exit, options);
    if (response.ok()) continue;
    LogWarning("exit_not_reported",
               {{"worker", absl::StrCat(exit.identity().node(), "/",
                                        exit.identity().slot())},
                {"coordinator", stub_->address()},
                {"error", response.status().ToString()}});
  }
}

}  // namespace coxswain
