#ifndef COXSWAIN_CLIENT_DEVICE_CUDA_CUDA_STATUS_H_
#define COXSWAIN_CLIENT_DEVICE_CUDA_CUDA_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// The only place where CUDA's errors are translated: returns a cudaError_t as a
// status whose message begins with `what` was done and ends with what can be
// done. Part of every build, so that errors which do not occur on the machine
// at hand are tested too.
//   OK                   0
//   RESOURCE_EXHAUSTED   memory is exhausted
//   INVALID_ARGUMENT     an argument of ours
//   FAILED_PRECONDITION  the driver, the GPU or the stream is not ready for it
//   UNIMPLEMENTED        this GPU or driver cannot
//   UNAVAILABLE          the GPU, or all this process has on it, is lost
//   INTERNAL             any other
absl::Status CudaStatus(int error, absl::string_view what);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_CUDA_CUDA_STATUS_H_
