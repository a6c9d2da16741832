#ifndef COXSWAIN_BASE_CANCEL_SIGNAL_H_
#define COXSWAIN_BASE_CANCEL_SIGNAL_H_

#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace coxswain {

// Ends calls that are under way: raised once, with the status that they shall
// return. Shared by the code that may raise it and the calls that it ends.
// Thread-safe.
class CancelSignal {
 public:
  // Raises the signal, unless it was raised before. Runs the callbacks, without
  // a lock held.
  void Raise(const absl::Status& why);

  // Returns OK until raised.
  absl::Status status() const;

  // Runs `callback` when raised; at once if it has been. The callback owns
  // what it touches: it may still be running when Forget returns.
  uint64_t OnRaise(std::function<void()> callback);
  void Forget(uint64_t id);

  // Sleeps. Returns true as soon as the signal is raised, false if it was not.
  bool WaitFor(absl::Duration duration) const;

 private:
  mutable Mutex mutex_;
  mutable CondVar raised_;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, std::function<void()>> callbacks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_CANCEL_SIGNAL_H_
