#ifndef COXSWAIN_HOOKS_DEVICE_DEVICE_EXCHANGE_H_
#define COXSWAIN_HOOKS_DEVICE_DEVICE_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/comm/communicator.h"
#include "client/comm/device_queue.h"
#include "client/device/tensor.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"

namespace coxswain {

// What the exchanges of buckets in a GPU's memory have in common.

inline bool IsOnDevice(const Bucket& bucket) {
  return bucket.data.device.kind != Device::Kind::kCpu;
}

// Returns the communicator's queue. INVALID_ARGUMENT, with the back end and the
// device, if it moves CPU memory only or that of another GPU than the bucket's.
absl::StatusOr<DeviceQueue*> QueueFor(absl::string_view hook,
                                      const Bucket& bucket,
                                      Communicator& communicator);

// What comes on the queue's stream waits until the gradients stand in the
// bucket.
absl::Status AwaitGradients(const Bucket& bucket, DeviceQueue& queue);

// How a collective began whose end is known from a later Mark: its error if it
// has ended with one.
absl::Status Begun(const WorkPtr& work);

// Returns an exchange that waits for the host once, at its end: the first
// Advance enqueues the wait for the gradients and then what `enqueue` does,
// which is to leave the average in the bucket; its Work ends when that has run.
std::unique_ptr<Exchange> MakeDeviceExchange(
    const Bucket& bucket, DeviceQueue& queue,
    std::function<absl::Status()> enqueue);

// What a hook enqueues in the same way in each step, recorded the second time
// and run with one launch from then on: a sequence for each stream, memory and
// part. The first time it is enqueued as it is, as a communicator's first
// collectives may make connections.
//
// Life-cycle: a member of the hook, which clears it in Configure: memory and
// communicators are others then. Queues outlive their use here.
// Threading: one thread at a time, that of the hook.
class SequenceCache {
 public:
  // Most sequences that are kept; what is beyond is enqueued each time.
  static constexpr size_t kMost = 256;

  // Enqueues what `enqueue` does on the queue's stream, which is the same each
  // time for this span's memory, count and type and this `part`; it has neither
  // waits nor Marks. Without recording where the queue cannot. Errors: those of
  // `enqueue` and of the queue.
  absl::Status Run(DeviceQueue& queue, const Span& span, int64_t part,
                   const std::function<absl::Status()>& enqueue);

  void Clear();
  size_t size() const { return sequences_.size(); }

 private:
  // Stream, memory, count, type, part.
  using Key = std::tuple<DeviceStream, const void*, int64_t, DType, int64_t>;

  std::map<Key, std::unique_ptr<DeviceSequence>> sequences_;
  std::set<Key> seen_;              // of those, and to be recorded
  std::set<DeviceStream> without_;  // cannot record
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_DEVICE_DEVICE_EXCHANGE_H_
