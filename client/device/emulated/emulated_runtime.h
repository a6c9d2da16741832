#ifndef COXSWAIN_CLIENT_DEVICE_EMULATED_EMULATED_RUNTIME_H_
#define COXSWAIN_CLIENT_DEVICE_EMULATED_EMULATED_RUNTIME_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "client/device/emulated/emulated_stream.h"
#include "client/device/runtime.h"

namespace coxswain {

// A GPU for tests on machines without one: its memory is the host's, and its
// streams are threads, which wait for each other only where asked to. So a
// missing wait is a data race that ThreadSanitizer reports, a missing write
// shows as NaN, and a use after Free is AddressSanitizer's.
//
// What is null as a stream is a stream too, one for each runtime.
// Events of one runtime may be waited for on streams of another.
// A capture notes launches and copies; Record and StreamWait on a stream that
// is being captured are refused, as by CUDA's runtime here.
//
// Life-cycle: outlives all that is made with it. Its end releases held streams,
// waits for what is on them, and frees what was not freed; leaked() counts it.
// What never ends there, such as a collective whose peer does not come, ends
// the process after a minute.
// Threading and errors: as DeviceRuntime. Freeing what is not allocated, and
// working on a destroyed stream, ends the process.
class EmulatedRuntime : public DeviceRuntime {
 public:
  explicit EmulatedRuntime(int index = 0);
  ~EmulatedRuntime() override;

  // For libraries that enqueue on streams of any runtime. Not for null.
  static HostStream* HostStreamOf(DeviceStream stream);

  // From now on all of it is UNAVAILABLE, with `why`: what has not begun is
  // dropped, held streams are released, and events do not pass.
  void Fail(absl::string_view why);
  // The allocation after `before` more of them is RESOURCE_EXHAUSTED; those
  // after it are not.
  void FailAllocation(int before);
  // Until ReleaseStream the stream begins nothing more.
  void HoldStream(DeviceStream stream);
  void ReleaseStream(DeviceStream stream);

  // Pieces of memory, events, graphs and streams that exist now.
  int64_t leaked() const;
  // Kernels and collectives enqueued so far, by all threads; those that a
  // capture noted count once.
  int64_t launches() const;
  int64_t graph_launches() const { return graph_launches_.load(); }
  // Fills too.
  int64_t copies() const { return copies_.load(); }

  // To be called before its first use.
  void set_properties(const DeviceProperties& properties) {
    properties_ = properties;
  }

  Device device() const override;
  const DeviceProperties& properties() const override { return properties_; }
  absl::StatusOr<void*> Allocate(int64_t bytes) override;
  void Free(void* memory) override;
  absl::StatusOr<void*> AllocateHost(int64_t bytes) override;
  void FreeHost(void* memory) override;
  absl::StatusOr<DeviceStream> CreateStream() override;
  void DestroyStream(DeviceStream stream) override;
  absl::StatusOr<DeviceEvent> CreateEvent() override;
  void DestroyEvent(DeviceEvent event) override;
  absl::Status Record(DeviceEvent event, DeviceStream stream) override;
  absl::Status StreamWait(DeviceStream stream, DeviceEvent event) override;
  absl::StatusOr<bool> HasPassed(DeviceEvent event) override;
  absl::Status Copy(void* to, const void* from, int64_t bytes,
                    DeviceStream stream) override;
  absl::Status Fill(void* to, uint8_t value, int64_t bytes,
                    DeviceStream stream) override;
  LaunchTarget Target(DeviceStream stream) override;
  absl::Status StatusOf(const LaunchTarget& target) override;
  absl::Status BeginCapture(DeviceStream stream) override;
  absl::StatusOr<DeviceGraph> EndCapture(DeviceStream stream) override;
  absl::Status LaunchGraph(DeviceGraph graph, DeviceStream stream) override;
  void DestroyGraph(DeviceGraph graph) override;

 private:
  using Pieces = std::map<void*, int64_t>;

  // OK, or why the device has failed.
  absl::Status Alive() const;
  absl::StatusOr<void*> AllocateIn(Pieces* pieces, int64_t bytes);
  void FreeIn(Pieces* pieces, void* memory);
  EmulatedStream* StreamAt(DeviceStream stream) const;
  // Returns an error if it is being captured.
  absl::StatusOr<EmulatedStream*> Uncaptured(DeviceStream stream) const;

  const int index_;
  DeviceProperties properties_;
  std::atomic<bool> failed_{false};
  std::atomic<int64_t> graph_launches_{0};
  std::atomic<int64_t> copies_{0};
  std::atomic<int64_t> events_{0};
  std::atomic<int64_t> graphs_{0};

  mutable Mutex mutex_;
  std::string why_failed_ ABSL_GUARDED_BY(mutex_);
  int64_t allocations_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t failing_allocation_ ABSL_GUARDED_BY(mutex_) = -1;
  Pieces memory_ ABSL_GUARDED_BY(mutex_);
  Pieces host_memory_ ABSL_GUARDED_BY(mutex_);
  // Freed after the device has failed, which may still work on them.
  std::vector<void*> unreclaimed_ ABSL_GUARDED_BY(mutex_);
  // Those that were destroyed too, whose threads end when they are through.
  std::vector<std::unique_ptr<EmulatedStream>> streams_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<EmulatedStream> default_stream_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_EMULATED_EMULATED_RUNTIME_H_
