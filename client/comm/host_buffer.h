#ifndef COXSWAIN_CLIENT_COMM_HOST_BUFFER_H_
#define COXSWAIN_CLIENT_COMM_HOST_BUFFER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "client/comm/communicator.h"

namespace coxswain {

// Memory of the CPU that this communicator moves, for control data that its
// user reads and writes: what AllocateBuffer gives, unless that is a GPU's.
inline absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateHostBuffer(
    Communicator& communicator, int64_t count, DType dtype) {
  if (communicator.device_queue() == nullptr) {
    return communicator.AllocateBuffer(count, dtype);
  }
  return communicator.Communicator::AllocateBuffer(count, dtype);
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_HOST_BUFFER_H_
