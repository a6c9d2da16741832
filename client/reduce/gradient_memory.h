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

// The reducer's own work on gradients, where they are: in the CPU's memory, at
// once, or on a GPU, where it is enqueued on two streams:
//
//   the caller's stream    gradients come, zeros are written, the averages are
//                          clipped and copied out
//   the exchange's stream  gradients are weighted; averages are measured and
//                          copied out while other buckets travel
//
// Work that the caller enqueues once a step is finished runs after all of it.
// Owned by the reducer. `factor` is as in Scale of gradient_statistics.h.
class GradientMemory {
 public:
  // Passes when a bucket's gradients are ready; null in the CPU's memory.
  using Ready = std::shared_ptr<std::remove_pointer_t<DeviceEvent>>;

  virtual ~GradientMemory() = default;

  // Between steps, by the caller:

  virtual absl::StatusOr<Ready> MakeReady() = 0;
  // Between buckets that no exchange uses.
  virtual absl::Status Copy(const Span& to, const Span& from) = 0;
  // Makes what is enqueued on the exchange's stream next run after all that is
  // on the caller's.
  virtual absl::Status FollowCaller() = 0;
  // Sets the buckets of the next steps. Waits until everything that was
  // enqueued on both streams has run; memory may be freed then.
  virtual absl::Status Settle(const std::vector<Bucket>& buckets,
                              absl::Duration timeout) = 0;

  // Of a step, by the caller's threads; any of them, but for the first and the
  // last:

  virtual absl::Status Begin(const std::vector<Bucket>& buckets) = 0;
  // Clears this rank's gradient, at `view` in the bucket.
  virtual absl::Status ClearGradient(const Bucket& bucket,
                                     const Span& view) = 0;
  virtual absl::Status CopyGradient(const Bucket& bucket, const Span& view,
                                    const void* gradient) = 0;
  // A gradient of the bucket is ready, or will be when the caller's stream gets
  // there. Called before it is counted.
  virtual absl::Status NoteGradient(const Bucket& bucket) = 0;
  // After the exchange: computes outside = average * factor, in place if null.
  virtual absl::Status Deliver(const Span& average, double factor,
                               void* outside) = 0;
  // Everything has been delivered: the step is finished.
  virtual absl::Status NoteDelivered() = 0;

  // Of a step, by the exchange thread:

  // Multiplies the gradients, once all of the bucket are ready. A factor of 0
  // makes them zeros, whatever they are.
  virtual absl::Status Weigh(const Bucket& bucket, double factor) = 0;
  // Takes the averages from the bucket: copies them to `outside`, which has a
  // place or null for each gradient, and measures those that count.
  virtual absl::Status TakeAverages(const Bucket& bucket,
                                    const std::vector<void*>& outside,
                                    bool measure) = 0;
  // Adds a slice's averages, which `slice` has in place of its bucket's, to
  // `sum`, in their own type; with `back`, copies the sum to where they are.
  virtual absl::Status AddAverages(const Bucket& slice, const Span& sum,
                                   bool back) = 0;
  // Waits until everything that these two have enqueued has run.
  virtual absl::Status AwaitAverages(absl::Duration timeout) = 0;
  // Returns those of all averages measured in this step; after AwaitAverages.
  virtual GradientStatistics statistics() const = 0;

  // After an error, on any thread: waits until everything on the exchange's
  // stream has run, or for `timeout`; for the caller's stream, too, if
  // FollowCaller was called before.
  virtual void Quiesce(absl::Duration timeout) = 0;
};

std::unique_ptr<GradientMemory> MakeHostGradientMemory();

// `queue`, which is the communicator's, outlives the result. `caller_stream`
// returns the stream on which the calling thread has enqueued its work; null:
// the device's default stream.
std::unique_ptr<GradientMemory> MakeDeviceGradientMemory(
    DeviceQueue* queue,
    std::function<absl::StatusOr<DeviceStream>()> caller_stream);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_GRADIENT_MEMORY_H_
