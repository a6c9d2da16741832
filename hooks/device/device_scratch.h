#ifndef COXSWAIN_HOOKS_DEVICE_DEVICE_SCRATCH_H_
#define COXSWAIN_HOOKS_DEVICE_DEVICE_SCRATCH_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/device_queue.h"
#include "client/device/buffer.h"
#include "client/device/runtime.h"

namespace coxswain {

// Memory that a hook uses again from step to step, for its work on the streams
// of device queues: a GPU's, and the host's that the GPU copies to and from.
// What ScratchPool (hooks/scratch.h) is on the CPU.
//
// Life-cycle: a member of the hook. Blocks go back when their last holder lets
// go of them, even after the scratch is gone, and stay until Clear, which
// Configure calls. The runtimes outlive it and the blocks.
// Threading: safe; what is enqueued on one queue comes from one thread at a
// time, as ever.
// Errors: those of the runtime's allocation.
class DeviceScratch {
 public:
  DeviceScratch();
  // Memory that a stream may still be working on is left to the process's end,
  // with a line in the log: it happens only if a device has hung.
  ~DeviceScratch();
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;

  // At least `bytes` of the GPU's memory, aligned to 256, with undefined
  // contents; for what is enqueued on the queue's stream only. The stream's
  // order keeps uses apart, so its holder may let go of it as soon as it has
  // enqueued all that uses it: its next use comes later on the same
  // stream. A recorded sequence may use it until the next Clear, if all that
  // it needs of the contents it has written itself.
  absl::StatusOr<std::shared_ptr<void>> Take(DeviceQueue& queue, int64_t bytes);

  // The host's memory. `copying` is set by the holder while copies on the
  // stream may be using it; let go of like that, it is not given out again.
  struct HostBlock {
    void* data = nullptr;
    bool copying = false;
  };
  absl::StatusOr<std::shared_ptr<HostBlock>> TakeHost(DeviceQueue& queue,
                                                      int64_t bytes);

  // To be called after enqueueing what uses the memory, outside of recordings:
  // so Clear knows when the stream is through with it.
  absl::Status Seal(DeviceQueue& queue);

  // Frees what no stream uses and no caller holds.
  void Clear();

 private:
  class Blocks;
  const std::shared_ptr<Blocks> blocks_;
};

// A stream of its own by which a hook fetches its memory when no communicator
// is there, as between two generations.
// Threading: one thread at a time. The runtime outlives it.
class DeviceTransfer {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceTransfer>> Make(
      DeviceRuntime& runtime);
  ~DeviceTransfer();
  DeviceTransfer(const DeviceTransfer&) = delete;
  DeviceTransfer& operator=(const DeviceTransfer&) = delete;

  // Copies from the device, once `after` has passed, and waits for it.
  absl::StatusOr<PinnedBuffer> Fetch(const void* from, int64_t bytes,
                                     DeviceEvent after);

 private:
  explicit DeviceTransfer(DeviceRuntime& runtime) : runtime_(runtime) {}

  DeviceRuntime& runtime_;
  DeviceStream stream_ = nullptr;
  DeviceEvent copied_ = nullptr;
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_DEVICE_DEVICE_SCRATCH_H_
