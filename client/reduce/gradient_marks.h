#ifndef COXSWAIN_CLIENT_REDUCE_GRADIENT_MARKS_H_
#define COXSWAIN_CLIENT_REDUCE_GRADIENT_MARKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/reduce/bucket.h"

namespace coxswain {

// Which gradients of a step are ready: how the threads of the backward pass
// notify the exchange thread. Owned by the reducer.
//
// Life-cycle: Begin, claims and their ends, Close; again for the next step.
// Stop ends it permanently. Thread-safe.
class GradientMarks {
 public:
  // How a gradient is handed over.
  struct Mark {
    bool used = true;         // this rank's backward pass reached the parameter
    void* outside = nullptr;  // where to copy the average; null: nowhere
    bool in_place = false;    // the gradient is there, and in no bucket
    bool absent = false;      // zeros, which are not in the bucket yet
  };
  enum class Claimed { kYes, kTwice, kClosed };

  // Begins a step over these buckets, which hold `parameters` gradients.
  // `complete`: all of them are ready and absent, and none is used.
  void Begin(const std::vector<Bucket>& buckets, size_t parameters,
             bool complete, absl::Time now);
  // Refuses further claims.
  void Close();
  // Ends every wait, now and later, with this error. The first error stays.
  void Stop(const absl::Status& error);

  // Claims this gradient for the caller's thread; only one thread can.
  Claimed Claim(int parameter, const Mark& mark);
  // The claimed gradient is in its bucket.
  void CountDown(int parameter, int bucket, absl::Time now);
  std::vector<int> Unclaimed() const;

  // For the exchange thread: waits until the bucket is complete. Has no
  // timeout, since its owner ends it by Stop.
  absl::Status AwaitBucket(int bucket);
  // Returns where to copy the parameter's average; null: nowhere. Called once
  // the copy is about to be made; returns null afterwards.
  void* TakeOutside(int parameter);
  // Returns where a gradient is that was marked in place, and will have its
  // average; null for others. TakeOutside returns null afterwards.
  void* TakeInPlace(int parameter);
  bool used(int parameter) const;
  bool absent(int parameter) const;

  // Returns 1 for each parameter that was used, by parameter.
  std::vector<int32_t> users() const;
  // Returns the parameters that were used, in the order in which they became
  // ready.
  std::vector<int> ready_order() const;
  // Returns when each bucket was complete.
  std::vector<absl::Time> ready_times() const;

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> claimed_ ABSL_GUARDED_BY(mutex_);      // by parameter
  std::vector<Mark> marks_ ABSL_GUARDED_BY(mutex_);        // by parameter
  std::vector<int> pending_ ABSL_GUARDED_BY(mutex_);       // by bucket
  std::vector<absl::Time> ready_ ABSL_GUARDED_BY(mutex_);  // by bucket
  std::vector<int> order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_GRADIENT_MARKS_H_
