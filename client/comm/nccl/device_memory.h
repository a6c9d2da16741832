#ifndef COXSWAIN_CLIENT_COMM_NCCL_DEVICE_MEMORY_H_
#define COXSWAIN_CLIENT_COMM_NCCL_DEVICE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"
#include "client/comm/nccl/nccl_link.h"
#include "client/device/buffer.h"
#include "client/device/runtime.h"

namespace coxswain {

// Memory of the device, zeroed, that NCCL moves best: of its own making and
// registered with the communicator where it can, plain otherwise. May outlive
// the communicator, not the device. Waits up to 30 seconds for the zeros, and
// up to `timeout` for NCCL to register it. RESOURCE_EXHAUSTED for more than
// there is, and other errors of the device.
absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateDeviceMemory(
    NcclApi* api, DeviceRuntime* runtime, std::shared_ptr<NcclLink> link,
    int64_t count, DType dtype, const NcclTimeout& timeout);

// The way of CPU memory through NCCL, which moves memory of GPUs: pieces of
// pinned memory with as much of the device's. Meant for little of it: pieces
// are kept for reuse, as many as have been in flight at once.
//
// Life-cycle: ends when no piece is on a stream any more; pieces taken and not
// returned go with it. Thread-safe.
class Staging {
 public:
  struct Piece {
    PinnedBuffer host;
    DeviceBuffer device;
  };

  explicit Staging(DeviceRuntime* runtime) : runtime_(runtime) {}

  // One of at least `bytes`; RESOURCE_EXHAUSTED, and other errors of the
  // runtime.
  absl::StatusOr<Piece*> Take(int64_t bytes);
  // Once what was done with it has passed.
  void Return(Piece* piece);

 private:
  DeviceRuntime* const runtime_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Piece>> all_ ABSL_GUARDED_BY(mutex_);
  std::vector<Piece*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_DEVICE_MEMORY_H_
