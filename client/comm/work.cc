#include "client/comm/work.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace coxswain {

absl::Status Work::Wait(absl::Duration timeout) {
  WaitCount::Scope waits(waits_.get());
  absl::Duration left = timeout;
  if (assist_ != nullptr) {
    const absl::Time begun = Clock::Real()->Now();
    Assist(begun + timeout);
    left = std::max(timeout - (Clock::Real()->Now() - begun),
                    absl::ZeroDuration());
  }
  MutexLock lock(&mutex_);
  const auto ended = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return ended_; };
  if (!ended_cv_.WaitFor(&mutex_, left, ended)) {
    waits.GoesOn();
    return absl::DeadlineExceededError(absl::StrCat(
        "the operation has not ended within ", absl::FormatDuration(timeout),
        "; abort its communicator to cancel it"));
  }
  return status_;
}

bool Work::Done() {
  Assist(absl::InfinitePast());
  MutexLock lock(&mutex_);
  return ended_;
}

void Work::Assist(absl::Time until) {
  if (assist_ == nullptr) return;
  {
    MutexLock lock(&mutex_);
    if (ended_) return;
  }
  assist_(until);
}

std::shared_ptr<Work> Work::Assisted(
    std::function<void(absl::Time until)> assist) {
  auto work = std::make_shared<Work>();
  work->assist_ = std::move(assist);
  return work;
}

void Work::OnDone(std::function<void(const absl::Status&)> callback) {
  absl::Status status;
  bool ended = false;
  {
    MutexLock lock(&mutex_);
    if (!ended_) callbacks_.push_back(std::exchange(callback, nullptr));
    status = status_;
    ended = ended_;
  }
  if (ended) return callback(status);
  Assist(absl::InfinitePast());
}

bool Work::Complete(absl::Status status) {
  const absl::Status ended_with = std::move(status);
  std::vector<std::function<void(const absl::Status&)>> callbacks;
  {
    MutexLock lock(&mutex_);
    if (ended_) return false;
    ended_ = true;
    status_ = ended_with;
    callbacks.swap(callbacks_);
    ended_cv_.NotifyAll();
  }
  for (auto& callback : callbacks) callback(ended_with);
  return true;
}

std::shared_ptr<Work> Work::Ended(absl::Status status) {
  auto work = std::make_shared<Work>();
  work->Complete(std::move(status));
  return work;
}

absl::Status WaitHolding(const WorkPtr& work,
                         std::shared_ptr<const void> memory,
                         absl::Duration timeout) {
  work->OnDone([memory = std::move(memory)](const absl::Status&) {});
  return work->Wait(timeout);
}

}  // namespace coxswain
