#ifndef COXSWAIN_CLIENT_REDUCE_DEVICE_GRADIENT_MEMORY_H_
#define COXSWAIN_CLIENT_REDUCE_DEVICE_GRADIENT_MEMORY_H_

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/comm/device_queue.h"
#include "client/device/arithmetic.h"
#include "client/device/buffer.h"
#include "client/device/runtime.h"
#include "client/reduce/bucket.h"
#include "client/reduce/gradient_memory.h"

namespace coxswain {

// Gradients on a GPU. The exchange's stream is the communicator's; the caller's
// is asked for by the thread that hands a gradient over, and may be another one
// each time.
//
// A bucket's event is recorded anew with each gradient that comes, by a stream
// that has waited for the gradients before it: so it stands for all of them,
// whichever streams they came on. It is recorded at the beginning of a step,
// too, by which other streams overwrite averages only once they were copied
// out.
//
// Statistics are those of the CPU, bit for bit: two kernels a bucket, and at
// the end of the step one copy of the results to the host, where they are
// added up in the order in which the buckets came.
class DeviceGradientMemory : public GradientMemory {
 public:
  // What GPU work the caller has enqueued, it has on this stream.
  using CallerStream = std::function<absl::StatusOr<DeviceStream>()>;

  // `queue` outlives it. Without `caller_stream` the caller works on the
  // device's default stream.
  DeviceGradientMemory(DeviceQueue* queue, CallerStream caller_stream);
  // After Settle or Quiesce.
  ~DeviceGradientMemory() override;

  absl::StatusOr<Ready> MakeReady() override;
  absl::Status Clear(const Span& span) override;
  absl::Status Copy(const Span& to, const Span& from) override;
  absl::Status FollowCaller() override;
  absl::Status Settle(const std::vector<Bucket>& buckets,
                      absl::Duration timeout) override;
  absl::Status Begin(const std::vector<Bucket>& buckets) override;
  absl::Status ClearGradient(const Bucket& bucket, const Span& view) override;
  absl::Status CopyGradient(const Bucket& bucket, const Span& view,
                            const void* gradient) override;
  absl::Status NoteGradient(const Bucket& bucket) override;
  absl::Status Deliver(const Span& average, double factor,
                       void* outside) override;
  absl::Status NoteDelivered() override;
  absl::Status Weigh(const Bucket& bucket, double factor) override;
  absl::Status TakeAverages(const Bucket& bucket,
                            const std::vector<void*>& outside,
                            bool measure) override;
  absl::Status AwaitAverages(absl::Duration timeout) override;
  GradientStatistics statistics() const override { return statistics_; }
  void Quiesce(absl::Duration timeout) override;

 private:
  absl::StatusOr<DeviceStream> Caller() const;
  // It comes after what was delivered, maybe on another stream.
  absl::StatusOr<DeviceStream> CallerAfterDelivery() const;
  // It comes after the gradients of all buckets: a hook that leaves them as
  // they are waits for none.
  absl::StatusOr<DeviceStream> CallerAfterGradients();
  absl::Status CopyBytes(void* to, const void* from, int64_t bytes,
                         DeviceStream stream);
  absl::Status Scale(DeviceStream stream, const Span& in, double factor,
                     void* out);
  // The calling thread's stream, which comes after all that other streams did
  // to the bucket in this step.
  absl::StatusOr<DeviceStream> Enter(const Bucket& bucket);
  absl::StatusOr<DeviceStream> EnterLocked(const Bucket& bucket)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Memory for the results of all gradients.
  absl::Status Reserve(const std::vector<Bucket>& buckets);
  absl::Status Measure(const Bucket& bucket);

  DeviceQueue& queue_;
  DeviceRuntime& runtime_;
  const CallerStream caller_stream_;
  // Made when first needed.
  DeviceEvent caller_event_ = nullptr;
  DeviceEvent delivered_ = nullptr;

  // Of gradient i of bucket b at first_result_[b] + i.
  std::vector<int64_t> first_result_;
  DeviceBuffer scratch_;
  DeviceBuffer results_;
  PinnedBuffer host_results_;

  // The exchange thread's, within a step.
  std::vector<const Bucket*> measured_;  // in order
  bool copied_ = false;
  GradientStatistics statistics_;

  Mutex mutex_;
  // By which stream a bucket's event was recorded last.
  std::map<DeviceEvent, DeviceStream> recorded_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_DEVICE_GRADIENT_MEMORY_H_
