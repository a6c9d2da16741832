#include "base/cancel_signal.h"

#include <utility>

namespace coxswain {

void CancelSignal::Raise(const absl::Status& why) {
  std::map<uint64_t, std::function<void()>> callbacks;
  {
    MutexLock lock(&mutex_);
    if (!why_.ok() || why.ok()) return;
    why_ = why;
    callbacks.swap(callbacks_);
    raised_.NotifyAll();
  }
  for (const auto& [id, callback] : callbacks) callback();
}

absl::Status CancelSignal::status() const {
  MutexLock lock(&mutex_);
  return why_;
}

uint64_t CancelSignal::OnRaise(std::function<void()> callback) {
  {
    MutexLock lock(&mutex_);
    const uint64_t id = next_id_++;
    if (why_.ok()) {
      callbacks_.emplace(id, std::move(callback));
      return id;
    }
  }
  callback();
  return 0;
}

void CancelSignal::Forget(uint64_t id) {
  MutexLock lock(&mutex_);
  callbacks_.erase(id);
}

bool CancelSignal::WaitFor(absl::Duration duration) const {
  MutexLock lock(&mutex_);
  return raised_.WaitFor(
      &mutex_, duration,
      [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !why_.ok(); });
}

}  // namespace coxswain
