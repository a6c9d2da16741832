#ifndef COXSWAIN_CLIENT_COMM_DEVICE_QUEUE_H_
#define COXSWAIN_CLIENT_COMM_DEVICE_QUEUE_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/work.h"
#include "client/device/runtime.h"

namespace coxswain {

// A sequence of kernels and collectives that is run again with one launch. Can
// be replayed as long as the queue that recorded it lives; may outlive it.
class DeviceSequence {
 public:
  virtual ~DeviceSequence() = default;
};

// The stream on which a communicator's collectives on GPU memory run, in order
// with whatever else its user enqueues there: by the time such a collective
// has been started it is on the stream, so a hook enqueues kernels, a
// collective and kernels without ever waiting, and takes one Work for all of
// it from Mark. Work on another stream comes before by
// runtime().StreamWait(stream(), event).
//
// Got from Communicator::device_queue; lives as long as the communicator.
// Threading: as the start of collectives.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  virtual DeviceRuntime& runtime() = 0;
  virtual DeviceStream stream() = 0;

  // Returns a Work that ends once everything on the stream has run, or with the
  // communicator's error when that ends.
  virtual WorkPtr Mark() = 0;

  // Calls `enqueue` once, and records what it enqueues on stream(), including
  // collectives of the communicator, without running any of it. The Works of
  // those collectives have ended when they are returned. Fails with
  // UNIMPLEMENTED if the device or the library cannot record; then nothing has
  // been enqueued, and the caller enqueues it each time. Other errors are those
  // of `enqueue`.
  virtual absl::StatusOr<std::unique_ptr<DeviceSequence>> Record(
      const std::function<absl::Status()>& enqueue) = 0;
  // Enqueues the sequence. Its collectives count as if they had been started.
  virtual absl::Status Replay(const DeviceSequence& sequence) = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_DEVICE_QUEUE_H_
