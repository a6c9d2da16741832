#ifndef COXSWAIN_CLIENT_COMM_WORK_H_
#define COXSWAIN_CLIENT_COMM_WORK_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/wait_count.h"

namespace coxswain {

// The handle of an operation in flight. It ends exactly once, with a status.
// Thread-safe; shared between the caller that started the operation and the
// thread that completes it.
class Work {
 public:
  // Waits for the end; fails with DEADLINE_EXCEEDED if it does not come in time
  // (the operation continues: abort its communicator to stop it).
  absl::Status Wait(absl::Duration timeout);

  // Returns whether the operation has ended. Never blocks.
  bool Done();

  // Calls `callback` with the result: at once if it has ended, otherwise on
  // the thread that ends it, which it must not block. No lock is held.
  void OnDone(std::function<void(const absl::Status&)> callback);

  // For back ends: ends the operation. The first call wins; returns
  // whether this one did.
  bool Complete(absl::Status status);

  static std::shared_ptr<Work> Ended(absl::Status status);

  // For communicators, before the operation is handed to its caller: Wait
  // counts there.
  void CountWaitsIn(std::shared_ptr<WaitCount> waits) {
    waits_ = std::move(waits);
  }

  // For back ends: an operation that the waiting thread completes, which saves
  // a change of threads. `assist` is called, without a lock, by Wait with the
  // time until which it may block (by Clock::Real()), and by OnDone and Done
  // with one that has passed, which only shows that a caller is interested; it
  // ends the operation or makes sure that another thread does. It may be called
  // several times, and after the end.
  static std::shared_ptr<Work> Assisted(
      std::function<void(absl::Time until)> assist);

 private:
  // Calls `assist_` unless the operation has ended.
  void Assist(absl::Time until);

  std::function<void(absl::Time)> assist_;  // null, or set before it is shared
  std::shared_ptr<WaitCount> waits_;        // may be null
  Mutex mutex_;
  CondVar ended_cv_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void(const absl::Status&)>> callbacks_
      ABSL_GUARDED_BY(mutex_);
};

using WorkPtr = std::shared_ptr<Work>;

// Waits for an operation that uses `memory`, which lives until the operation
// has ended, even if the wait times out.
absl::Status WaitHolding(const WorkPtr& work,
                         std::shared_ptr<const void> memory,
                         absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_WORK_H_
