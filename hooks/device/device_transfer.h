#ifndef COXSWAIN_HOOKS_DEVICE_DEVICE_TRANSFER_H_
#define COXSWAIN_HOOKS_DEVICE_DEVICE_TRANSFER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/device/buffer.h"
#include "client/device/runtime.h"

namespace coxswain {

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

#endif  // COXSWAIN_HOOKS_DEVICE_DEVICE_TRANSFER_H_
