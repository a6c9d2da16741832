#include "client/device/cuda/devices.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/device/cuda/cuda_runtime.h"

namespace coxswain {
namespace {

struct Registry {
  Mutex mutex;
  std::map<int, std::unique_ptr<DeviceRuntime>> devices ABSL_GUARDED_BY(mutex);
};

// Never destroyed: threads may use GPUs while the process ends.
Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

int DeviceCount(std::string* why_none) {
  std::string why;
  int count = CudaDeviceCount(&why);
  Registry& registry = TheRegistry();
  {
    const MutexLock lock(&registry.mutex);
    if (!registry.devices.empty()) {
      count = std::max(count, registry.devices.rbegin()->first + 1);
    }
  }
  if (count == 0 && why_none != nullptr) *why_none = std::move(why);
  return count;
}

absl::StatusOr<DeviceRuntime*> GetDevice(int index) {
  Registry& registry = TheRegistry();
  const MutexLock lock(&registry.mutex);
  const auto found = registry.devices.find(index);
  if (found != registry.devices.end()) return found->second.get();
  auto made = MakeCudaRuntime(index);
  if (!made.ok()) return made.status();
  DeviceRuntime* const runtime = made->get();
  registry.devices[index] = *std::move(made);
  return runtime;
}

void UseDevice(int index, std::unique_ptr<DeviceRuntime> runtime) {
  Registry& registry = TheRegistry();
  const MutexLock lock(&registry.mutex);
  registry.devices.erase(index);
  if (runtime != nullptr) registry.devices[index] = std::move(runtime);
}

}  // namespace coxswain
