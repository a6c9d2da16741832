#ifndef COXSWAIN_CLIENT_DEVICE_AWAIT_FOR_TEST_H_
#define COXSWAIN_CLIENT_DEVICE_AWAIT_FOR_TEST_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "client/device/runtime.h"

namespace coxswain {

// For tests: waits until all that is on the stream has run. A minute without it
// is DEADLINE_EXCEEDED; errors of the device come at once.
inline absl::Status AwaitStream(DeviceRuntime* runtime, DeviceStream stream) {
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceEvent event, runtime->CreateEvent());
  absl::Status status = runtime->Record(event, stream);
  if (status.ok()) status = AwaitEvent(runtime, event);
  runtime->DestroyEvent(event);
  return status;
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_AWAIT_FOR_TEST_H_
