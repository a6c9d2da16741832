#ifndef COXSWAIN_HOOKS_INT8_INT8_DEVICE_H_
#define COXSWAIN_HOOKS_INT8_INT8_DEVICE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/device_queue.h"
#include "client/device/runtime.h"
#include "hooks/device/device_scratch.h"
#include "hooks/device/device_transfer.h"
#include "hooks/int8/int8_errors.h"

namespace coxswain {

// The int8 hook's work on one GPU: in what order its streams do it, and how
// errors come there and back.
//
// Errors stay on the GPU from step to step. The stream of a new communicator
// first waits for all that an older one has been given, so memory is used again
// without a wait of the host; before it is freed, Await.
// Life-cycle: a member of the hook, made with its first bucket on a GPU, and
// destroyed, after a last Await of the hook, before the errors. The runtime
// outlives it.
// Threading: as the hook's. Errors: those of the runtime; DEADLINE_EXCEEDED
// when the GPU is not through after a minute.
class Int8Device {
 public:
  static absl::StatusOr<std::unique_ptr<Int8Device>> Make(
      DeviceRuntime& runtime);
  ~Int8Device();
  Int8Device(const Int8Device&) = delete;
  Int8Device& operator=(const Int8Device&) = delete;

  DeviceRuntime& runtime() { return runtime_; }
  DeviceScratch& scratch() { return scratch_; }

  // Before and after what an exchange enqueues on the queue's stream.
  absl::Status Begin(DeviceQueue& queue);
  absl::Status End(DeviceQueue& queue);
  // Waits until the GPU is through with all of it.
  absl::Status Await();

  // Between Begin and End: enqueues copies to the device of those errors that
  // are in the host's memory, by way of memory from which the GPU copies in the
  // background. Returns that, `copying`; null if there is nothing to copy.
  template <typename T>
  absl::StatusOr<std::shared_ptr<DeviceScratch::HostBlock>> Upload(
      const std::vector<Int8Parameter<T>*>& parameters, DeviceQueue& queue);

  // Brings a parameter's current errors back to the host's memory. Waits.
  template <typename T>
  absl::Status FetchOne(Int8Parameter<T>* parameter);
  // These parameters with all current errors in the host's memory. Waits.
  absl::StatusOr<AllInt8Parameters> Fetch(const AllInt8Parameters& parameters);

 private:
  // The same of one parameter, by way of `*staging`, which it moves on.
  template <typename T>
  absl::Status UploadOne(Int8Parameter<T>& parameter, T** staging,
                         DeviceQueue& queue);

  explicit Int8Device(DeviceRuntime& runtime) : runtime_(runtime) {}

  DeviceRuntime& runtime_;
  DeviceScratch scratch_;
  DeviceEvent last_ = nullptr;  // behind all that was enqueued
  std::unique_ptr<DeviceTransfer> transfer_;
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_INT8_INT8_DEVICE_H_
