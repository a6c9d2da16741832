#ifndef COXSWAIN_CLIENT_DEVICE_CUDA_DEVICES_H_
#define COXSWAIN_CLIENT_DEVICE_CUDA_DEVICES_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/device/runtime.h"

namespace coxswain {

// The GPUs of this process: those that CUDA shows it. Thread-safe.

// Returns how many there are; 0 with the reason in `why_none` (if not null):
// built without CUDA, no driver, none visible.
int DeviceCount(std::string* why_none = nullptr);

// Returns the runtime of one GPU, made by the first call; lives to the
// process's end. Fails with NOT_FOUND, with the number there are, and with
// UNIMPLEMENTED in a build without CUDA.
absl::StatusOr<DeviceRuntime*> GetDevice(int index);

// For tests: makes device `index` this one from now on, or CUDA's again if
// null. The one before must not be in use. Such devices count in DeviceCount.
void UseDevice(int index, std::unique_ptr<DeviceRuntime> runtime);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_CUDA_DEVICES_H_
