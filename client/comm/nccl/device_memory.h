#ifndef COXSWAIN_CLIENT_COMM_NCCL_DEVICE_MEMORY_H_
#define COXSWAIN_CLIENT_COMM_NCCL_DEVICE_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/comm/nccl/nccl_link.h"
#include "client/device/runtime.h"

namespace coxswain {

// Memory of the device, zeroed, that NCCL moves best: of its own making and
// registered with the communicator where it can, plain otherwise. May outlive
// the communicator, not the device. Waits up to 30 seconds for the zeros, and
// up to `patience` for NCCL to register it. RESOURCE_EXHAUSTED for more than
// there is, and other errors of the device.
absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateDeviceMemory(
    NcclApi* api, DeviceRuntime* runtime, std::shared_ptr<NcclLink> link,
    int64_t count, DType dtype, const NcclPatience& patience);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_DEVICE_MEMORY_H_
