#ifndef COXSWAIN_CLIENT_DEVICE_CUDA_CUDA_RUNTIME_H_
#define COXSWAIN_CLIENT_DEVICE_CUDA_CUDA_RUNTIME_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/device/runtime.h"

namespace coxswain {

// DeviceRuntime over CUDA's runtime. For client/device/cuda/devices.h. Part of
// every build, also on machines without a driver, where it finds no GPUs.
//
// A call makes the GPU current on its thread and leaves it so. Freed memory is
// kept and reused; only when memory is exhausted is it given back to the
// driver, which waits for the GPU.

// Returns how many GPUs CUDA shows this process; 0 with the reason in
// `why_none`: built without CUDA, no driver, none visible.
int CudaDeviceCount(std::string* why_none);

// Fails with NOT_FOUND if there is no such GPU, with UNIMPLEMENTED in a build
// without CUDA, and with the errors of CudaStatus.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> MakeCudaRuntime(int index);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_CUDA_CUDA_RUNTIME_H_
