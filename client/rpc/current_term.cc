#include "client/rpc/current_term.h"

#include <algorithm>

namespace coxswain {

int64_t CurrentTerm::Get() const {
  MutexLock lock(&state_->mutex);
  return state_->term;
}

void CurrentTerm::Raise(int64_t term) {
  MutexLock lock(&state_->mutex);
  state_->term = std::max(state_->term, term);
  state_->changed.NotifyAll();
}

void CurrentTerm::Close() {
  MutexLock lock(&state_->mutex);
  state_->closed = true;
  state_->changed.NotifyAll();
}

bool CurrentTerm::closed() const {
  MutexLock lock(&state_->mutex);
  return state_->closed;
}

bool CurrentTerm::WaitForNewer(int64_t term, absl::Duration timeout,
                               CancelSignal* cancel) const {
  const auto cancelled = [cancel]() {
    return cancel != nullptr && !cancel->status().ok();
  };
  uint64_t id = 0;
  if (cancel != nullptr) {
    id = cancel->OnRaise([state = state_]() {
      MutexLock lock(&state->mutex);
      state->changed.NotifyAll();
    });
  }
  bool newer = false;
  {
    State& state = *state_;
    MutexLock lock(&state.mutex);
    state.changed.WaitFor(
        &state.mutex, timeout, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return state.term > term || state.closed || cancelled();
        });
    newer = state.term > term;
  }
  if (cancel != nullptr) cancel->Forget(id);
  return newer && !cancelled();
}

}  // namespace coxswain
