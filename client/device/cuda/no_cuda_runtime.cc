#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/device/cuda/cuda_runtime.h"

// For builds without the toolkit.

namespace coxswain {
namespace {

constexpr char kWhy[] =
    "built without CUDA: install the CUDA Toolkit and build again";

}  // namespace

int CudaDeviceCount(std::string* why_none) {
  *why_none = kWhy;
  return 0;
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> MakeCudaRuntime(int index) {
  return absl::UnimplementedError(
      absl::StrCat("there is no GPU ", index, ": ", kWhy));
}

}  // namespace coxswain
