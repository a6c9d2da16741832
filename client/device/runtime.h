#ifndef COXSWAIN_CLIENT_DEVICE_RUNTIME_H_
#define COXSWAIN_CLIENT_DEVICE_RUNTIME_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/device/launch.h"
#include "client/device/tensor.h"

namespace coxswain {

// Of CUDA's runtime a cudaEvent_t and a cudaGraphExec_t.
struct DeviceEventHandle;
using DeviceEvent = DeviceEventHandle*;
struct DeviceGraphHandle;
using DeviceGraph = DeviceGraphHandle*;

// What a GPU is, for display and for the manifest.
struct DeviceProperties {
  std::string name;        // "NVIDIA H200"
  std::string pci_bus_id;  // "0000:1b:00.0"
  std::string uuid;        // 32 hexadecimal digits
  int compute_major = 0;
  int compute_minor = 0;
  int64_t memory = 0;  // bytes
  int multiprocessors = 0;
};

// One GPU, as this library uses it: memory, streams, events, graphs.
// Implemented over CUDA (client/device/cuda) and on the CPU
// (client/device/emulated), where each stream is a thread and memory is the
// host's, so that missing waits between streams are found. Both pass
// tests/conformance/device_conformance.h.
//
// No call here waits for the GPU: callers that wait poll an event. Copies and
// launches return before they have run.
//
// Life-cycle: one per device and process (client/device/cuda/devices.h), lives
// to the process's end. Everything made here is destroyed here, after its use:
// memory when no stream works on it any more. Null as a stream is CUDA's
// default stream, for tests. Threading: all methods from any thread; a capture
// belongs to one thread. Errors: RESOURCE_EXHAUSTED when memory is exhausted
// (with the bytes), UNAVAILABLE when the device has failed, which is permanent;
// INVALID_ARGUMENT.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual Device device() const = 0;  // of kind kCuda
  virtual const DeviceProperties& properties() const = 0;

  // Returns memory aligned to 256 bytes, contents undefined. 0 bytes: null.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  // Returns memory of the host that copies move fastest and in the background.
  virtual absl::StatusOr<void*> AllocateHost(int64_t bytes) = 0;
  virtual void FreeHost(void* memory) = 0;

  // Returns a stream that waits for no other one, of the highest priority.
  virtual absl::StatusOr<DeviceStream> CreateStream() = 0;
  // Returns at once; work on the stream still runs.
  virtual void DestroyStream(DeviceStream stream) = 0;
  virtual absl::StatusOr<DeviceEvent> CreateEvent() = 0;
  virtual void DestroyEvent(DeviceEvent event) = 0;
  // Makes the event stand for all work on the stream now.
  virtual absl::Status Record(DeviceEvent event, DeviceStream stream) = 0;
  // Makes later work on the stream wait for what the event stands for now; for
  // nothing if it has never been recorded.
  virtual absl::Status StreamWait(DeviceStream stream, DeviceEvent event) = 0;
  // Returns whether the work that the event stands for has run; true if it has
  // never been recorded. Fails with errors of the device too.
  virtual absl::StatusOr<bool> HasPassed(DeviceEvent event) = 0;

  // Copies between memory of this device and the host, in any direction. Memory
  // of the host that is not of AllocateHost may make the caller wait.
  virtual absl::Status Copy(void* to, const void* from, int64_t bytes,
                            DeviceStream stream) = 0;
  virtual absl::Status Fill(void* to, uint8_t value, int64_t bytes,
                            DeviceStream stream) = 0;

  // Returns the target of kernels on the stream; StatusOf has its error.
  virtual LaunchTarget Target(DeviceStream stream) = 0;
  // Returns the first error of these launches, or OK.
  virtual absl::Status StatusOf(const LaunchTarget& target) = 0;

  // Begins to record what this thread enqueues on the stream, up to EndCapture,
  // instead of running it. Record and StreamWait fail with FAILED_PRECONDITION
  // on it meanwhile. Null, the default stream, cannot be captured.
  virtual absl::Status BeginCapture(DeviceStream stream) = 0;
  virtual absl::StatusOr<DeviceGraph> EndCapture(DeviceStream stream) = 0;
  virtual absl::Status LaunchGraph(DeviceGraph graph, DeviceStream stream) = 0;
  virtual void DestroyGraph(DeviceGraph graph) = 0;
};

// Waits until an event has passed, by polling. For rare cases: between steps,
// at the end, and in steps that failed; the Works of a communicator do not need
// it. By the real clock. Fails with DEADLINE_EXCEEDED after `timeout`, and with
// errors of the device at once.
absl::Status AwaitEvent(DeviceRuntime* runtime, DeviceEvent event,
                        absl::Duration timeout = absl::Minutes(1));

// Fails with INVALID_ARGUMENT for a copy that no runtime takes. For
// implementations of DeviceRuntime.
absl::Status CheckCopy(const void* to, const void* from, int64_t bytes);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_RUNTIME_H_
