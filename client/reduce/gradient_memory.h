#ifndef COXSWAIN_CLIENT_REDUCE_GRADIENT_MEMORY_H_
#define COXSWAIN_CLIENT_REDUCE_GRADIENT_MEMORY_H_

#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/device/launch.h"
#include "client/reduce/bucket.h"
#include "client/reduce/gradient_statistics.h"

namespace coxswain {

class DeviceQueue;

// What the reducer does to gradients itself, where they are: in the CPU's
// memory, at once, or on a GPU, where work is enqueued in the order of two
// sides:
//
//   the caller's stream    gradients come, zeros are written, the averages are
//                          clipped and copied out
//   the exchange's stream  gradients are weighted; averages are measured and
//                          copied out while other buckets travel
//
// What the caller enqueues once a step is finished comes after all of it.
// Owned by the reducer. `factor` is as in Scale of gradient_statistics.h.
class GradientMemory {
 public:
  // Passes when a bucket's gradients stand; null in the CPU's memory.
  using Ready = std::shared_ptr<std::remove_pointer_t<DeviceEvent>>;

  virtual ~GradientMemory() = default;

  // Between steps, by the caller:

  virtual absl::StatusOr<Ready> MakeReady() = 0;
  // For buckets that no exchange uses yet.
  virtual absl::Status Clear(const Span& span) = 0;
  virtual absl::Status Copy(const Span& to, const Span& from) = 0;
  // What is enqueued on the exchange's stream next comes after all that is on
  // the caller's.
  virtual absl::Status FollowCaller() = 0;
  // The steps to come have these buckets. Waits until all has run that was
  // enqueued on both streams; memory may be freed then.
  virtual absl::Status Settle(const std::vector<Bucket>& buckets,
                              absl::Duration timeout) = 0;

  // Of a step, by the caller's threads; any of them, but for the first and the
  // last:

  virtual absl::Status Begin(const std::vector<Bucket>& buckets) = 0;
  // This rank's gradient, at `view` in the bucket.
  virtual absl::Status ClearGradient(const Bucket& bucket,
                                     const Span& view) = 0;
  virtual absl::Status CopyGradient(const Bucket& bucket, const Span& view,
                                    const void* gradient) = 0;
  // A gradient of the bucket stands, or will when the caller's stream gets
  // there. Before it is counted.
  virtual absl::Status NoteGradient(const Bucket& bucket) = 0;
  // After the exchange: outside = average * factor, or in place if null.
  virtual absl::Status Deliver(const Span& average, double factor,
                               void* outside) = 0;
  // Once all has been delivered: the step is finished.
  virtual absl::Status NoteDelivered() = 0;

  // Of a step, by the exchange thread:

  // After all gradients of the bucket. A factor of 0 makes them zeros, whatever
  // they are.
  virtual absl::Status Weigh(const Bucket& bucket, double factor) = 0;
  // The averages stand in the bucket: copies them to `outside`, which has a
  // place or null for each gradient, and measures them.
  virtual absl::Status TakeAverages(const Bucket& bucket,
                                    const std::vector<void*>& outside,
                                    bool measure) = 0;
  // Waits until all that TakeAverages asked for has been done.
  virtual absl::Status AwaitAverages(absl::Duration timeout) = 0;
  // Of all averages measured in this step; after AwaitAverages.
  virtual GradientStatistics statistics() const = 0;

  // After an error, any thread: waits until all has run that is on the
  // exchange's stream, or for `timeout`. For what is on the caller's, too, if
  // FollowCaller came first.
  virtual void Quiesce(absl::Duration timeout) = 0;
};

std::unique_ptr<GradientMemory> MakeHostGradientMemory();

// `queue`, which is the communicator's, outlives it. `caller_stream` gives the
// stream on which the calling thread has enqueued its work; null: the device's
// default stream.
std::unique_ptr<GradientMemory> MakeDeviceGradientMemory(
    DeviceQueue* queue,
    std::function<absl::StatusOr<DeviceStream>()> caller_stream);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_GRADIENT_MEMORY_H_
