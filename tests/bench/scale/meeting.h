#ifndef COXSWAIN_TESTS_BENCH_SCALE_MEETING_H_
#define COXSWAIN_TESTS_BENCH_SCALE_MEETING_H_

#include <algorithm>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace coxswain::bench {

// Waits until each of a number of calls is done. Any thread may be the one on
// which a call ends; it must outlive them.
class Meeting {
 public:
  explicit Meeting(size_t expected)
      : begun_(Clock::Real()->Now()), expected_(expected) {}

  // Counts one more call as done.
  void Arrive(const absl::Status& status) {
    const absl::Duration after = Clock::Real()->Now() - begun_;
    MutexLock lock(&mutex_);
    arrivals_.push_back(after);
    status_.Update(status);
    if (arrivals_.size() >= expected_) all_.NotifyAll();
  }
  std::function<void(const absl::Status&)> Arriving() {
    return [this](const absl::Status& status) { Arrive(status); };
  }

  // Returns the first error of the calls, or DEADLINE_EXCEEDED if not all came
  // in time.
  absl::Status Await(absl::Duration timeout) {
    MutexLock lock(&mutex_);
    const bool all =
        all_.WaitFor(&mutex_, timeout, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return arrivals_.size() >= expected_;
        });
    if (!status_.ok() || all) return status_;
    return absl::DeadlineExceededError(
        absl::StrCat(arrivals_.size(), " of ", expected_,
                     " calls are done after ", absl::FormatDuration(timeout)));
  }

  // Returns the times of the arrivals since this object was made, in order.
  std::vector<absl::Duration> arrivals() const {
    MutexLock lock(&mutex_);
    return arrivals_;
  }

 private:
  const absl::Time begun_;
  const size_t expected_;
  mutable Mutex mutex_;
  CondVar all_;
  std::vector<absl::Duration> arrivals_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_SCALE_MEETING_H_
