#ifndef COXSWAIN_CLIENT_REDUCE_GRADIENT_MARKS_H_
#define COXSWAIN_CLIENT_REDUCE_GRADIENT_MARKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/reduce/bucket.h"

namespace coxswain {

// Which gradients of a step are there: how the threads of the backward pass
// notify the exchange thread. Owned by the reducer.
//
// Life-cycle: Begin, claims and their ends, Close; again for the next step.
// Stop ends it for good. Thread-safe.
class GradientMarks {
 public:
  // How a gradient is handed over.
  struct Mark {
    bool used = true;         // this rank's backward pass reached the parameter
    void* outside = nullptr;  // where to copy the average; null: nowhere
  };
  enum class Claimed { kYes, kTwice, kClosed };

  // Begins a step over these buckets, which hold `parameters` gradients.
  // `complete`: all of them are there, and none is used.
  void Begin(const std::vector<Bucket>& buckets, size_t parameters,
             bool complete, absl::Time now);
  // No more claims.
  void Close();
  // Ends every wait, now and later, with this error. The first one stays.
  void Stop(const absl::Status& error);

  // The caller's thread hands over this gradient; one thread can.
  Claimed Claim(int parameter, const Mark& mark);
  // What was claimed stands in its bucket.
  void CountDown(int parameter, int bucket, absl::Time now);
  std::vector<int> Unclaimed() const;

  // For the exchange thread: waits until the bucket is complete, without a
  // bound of its own, since its owner ends it by Stop.
  absl::Status AwaitBucket(int bucket);
  // Where to copy the parameter's average; null: nowhere. It is asked once the
  // copy is about to be made, and so answers once only.
  void* TakeOutside(int parameter);
  bool used(int parameter) const;

  // By parameter, 1 where used.
  std::vector<int32_t> users() const;
  // Returns the parameters that were used, in the order in which they came.
  std::vector<int> ready_order() const;
  // By bucket, when it was complete.
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
