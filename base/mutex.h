#ifndef COXSWAIN_BASE_MUTEX_H_
#define COXSWAIN_BASE_MUTEX_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace coxswain {

// An annotated mutex over std::mutex. Used everywhere instead of absl::Mutex,
// because a packaged Abseil is not instrumented for ThreadSanitizer and would
// report races that are not there. Thread-safe.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a Mutex for a scope.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* mutex_;
};

// A condition variable for Mutex. Every wait has a deadline; a caller that
// waits for a shutdown flag passes a period and looks again.
class CondVar {
 public:
  // Waits until `condition()` is true or `timeout` has passed; returns the
  // last value of the condition. `mutex` is held on entry, on return, and
  // whenever `condition` runs.
  template <typename Condition>
  bool WaitFor(Mutex* mutex, absl::Duration timeout, Condition condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const bool result = cv_.wait_until(lock, Deadline(timeout), condition);
    lock.release();
    return result;
  }

  // Waits without a bound of its own: only for a thread's work queue, whose
  // owner always ends the wait by closing the queue.
  template <typename Condition>
  void WaitForWork(Mutex* mutex, Condition condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    cv_.wait(lock, condition);
    lock.release();
  }

  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  // The steady clock, so that a wait does not follow when the wall clock is
  // set. Not under gcc's ThreadSanitizer, which does not intercept that wait.
#ifdef __SANITIZE_THREAD__
  using WaitClock = std::chrono::system_clock;
#else
  using WaitClock = std::chrono::steady_clock;
#endif

  // Caps an infinite timeout at a year, and a negative one at now.
  static WaitClock::time_point Deadline(absl::Duration timeout) {
    const absl::Duration capped =
        std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24) * 365);
    return WaitClock::now() +
           std::chrono::microseconds(absl::ToInt64Microseconds(capped));
  }

  std::condition_variable cv_;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_MUTEX_H_
