#ifndef COXSWAIN_CLIENT_DEVICE_AWAIT_EVENT_H_
#define COXSWAIN_CLIENT_DEVICE_AWAIT_EVENT_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/device/runtime.h"

namespace coxswain {

// Waits until an event has passed, looking again and again, as there is no
// other way. For what is rare: between steps, at the end of things, and in
// steps that went wrong; the Works of a communicator need none of it. By the
// real clock. DEADLINE_EXCEEDED after `timeout`; errors of the device at once.
absl::Status AwaitEvent(DeviceRuntime* runtime, DeviceEvent event,
                        absl::Duration timeout = absl::Minutes(1));

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_AWAIT_EVENT_H_
