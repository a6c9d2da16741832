#ifndef COXSWAIN_SERVER_MEMBERSHIP_ORDERED_CALLS_H_
#define COXSWAIN_SERVER_MEMBERSHIP_ORDERED_CALLS_H_

#include <deque>
#include <functional>
#include <utility>

#include "base/mutex.h"

namespace coxswain::server {

// Makes calls one at a time and in the order in which they were added, without
// any lock held, on the threads that add them. A component adds a call under
// the lock that decides the order, releases that lock, and calls Run(): so no
// thread can overtake another one between the decision and the call.
// Thread-safe.
class OrderedCalls {
 public:
  void Add(std::function<void()> call) {
    MutexLock lock(&mutex_);
    calls_.push_back(std::move(call));
  }

  // Makes all calls that were added. Returns at once if a Run() is under way,
  // on another thread or further up the stack of this one: that one makes them.
  void Run() {
    {
      MutexLock lock(&mutex_);
      if (std::exchange(running_, true)) return;
    }
    while (const std::function<void()> call = Next()) call();
  }

  // Returns whether all calls that were added have returned.
  bool idle() const {
    MutexLock lock(&mutex_);
    return !running_ && calls_.empty();
  }

 private:
  // Null, and the run has ended: none is left.
  std::function<void()> Next() {
    MutexLock lock(&mutex_);
    if (calls_.empty()) {
      running_ = false;
      return nullptr;
    }
    std::function<void()> call = std::move(calls_.front());
    calls_.pop_front();
    return call;
  }

  mutable Mutex mutex_;
  std::deque<std::function<void()>> calls_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_ORDERED_CALLS_H_
