#ifndef COXSWAIN_BASE_FAKE_CLOCK_H_
#define COXSWAIN_BASE_FAKE_CLOCK_H_

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace coxswain {

// A Clock that moves only by Advance. Thread-safe.
class FakeClock : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::UnixEpoch() + absl::Hours(1))
      : now_(start) {}

  absl::Time Now() const override {
    MutexLock lock(&mutex_);
    return now_;
  }
  absl::Time WallTime() const override { return Now(); }

  void Advance(absl::Duration duration) {
    MutexLock lock(&mutex_);
    now_ += duration;
  }

 private:
  mutable Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_FAKE_CLOCK_H_
