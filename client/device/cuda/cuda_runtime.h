#ifndef COXSWAIN_CLIENT_DEVICE_CUDA_CUDA_RUNTIME_H_
#define COXSWAIN_CLIENT_DEVICE_CUDA_CUDA_RUNTIME_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/device/runtime.h"

namespace coxswain {

// DeviceRuntime over CUDA's runtime. For client/device/cuda/devices.h. Part of
// every build and of machines without a driver: there are no GPUs there.
//
// A call makes the GPU current on its thread and leaves it so. What is freed is
// kept and given out again; only when memory is out is it given back to the
// driver, which waits for the GPU.

// Returns how many GPUs CUDA shows this process; 0 with the reason in
// `why_none`: built without CUDA, no driver, none visible.
int CudaDeviceCount(std::string* why_none);

// NOT_FOUND if there is no such one; UNIMPLEMENTED in a build without CUDA.
// Other errors are CudaStatus's.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> MakeCudaRuntime(int index);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_CUDA_CUDA_RUNTIME_H_
