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

// Returns zeroed memory of the device that NCCL moves best: allocated by NCCL
// and registered with the communicator where it can, plain otherwise. May
// outlive the communicator, not the device. Waits up to 30 seconds for the
// zeros, and up to `timeout` for NCCL to register it. Fails with
// RESOURCE_EXHAUSTED if the device has too little, and with other errors of the
// device.
absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateDeviceMemory(
    NcclApi* api, DeviceRuntime* runtime, std::shared_ptr<NcclLink> link,
    int64_t count, DType dtype, const NcclTimeout& timeout);

// Stages CPU memory for NCCL, which moves memory of GPUs: pieces of pinned
// memory with as much of the device's. Meant for small amounts: pieces are kept
// for reuse, as many as have been in flight at once.
//
// Life-cycle: ends when no piece is on a stream any more; pieces taken and not
// returned are freed with it. Thread-safe.
class Staging {
 public:
  struct Piece {
    PinnedBuffer host;
    DeviceBuffer device;
  };

  explicit Staging(DeviceRuntime* runtime) : runtime_(runtime) {}

  // Returns a piece of at least `bytes`. Fails with RESOURCE_EXHAUSTED, and
  // with other errors of the runtime.
  absl::StatusOr<Piece*> Take(int64_t bytes);
  // Takes a piece back once the work on it has ended.
  void Return(Piece* piece);

 private:
  DeviceRuntime* const runtime_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Piece>> all_ ABSL_GUARDED_BY(mutex_);
  std::vector<Piece*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_DEVICE_MEMORY_H_
