#include "client/device/cuda/cuda_runtime.h"

#include <cuda_runtime.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/device/cuda/block_cache.h"
#include "client/device/cuda/cuda_status.h"
#include "client/device/runtime.h"

namespace coxswain {
namespace {

cudaStream_t Of(DeviceStream stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}
cudaEvent_t Of(DeviceEvent event) {
  return reinterpret_cast<cudaEvent_t>(event);
}
cudaGraphExec_t Of(DeviceGraph graph) {
  return reinterpret_cast<cudaGraphExec_t>(graph);
}

// Lets this thread call what has nothing to do with the stream that it may be
// capturing, which would end the capture otherwise.
class Aside {
 public:
  Aside() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~Aside() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

absl::StatusOr<DeviceProperties> ReadProperties(int index) {
  cudaDeviceProp read;
  char bus[32] = "";
  cudaError_t error = cudaGetDeviceProperties(&read, index);
  if (error == cudaSuccess) {
    error = cudaDeviceGetPCIBusId(bus, sizeof(bus), index);
  }
  COXSWAIN_RETURN_IF_ERROR(
      CudaStatus(error, absl::StrCat("GPU ", index, ": what it is")));
  DeviceProperties properties;
  properties.name = read.name;
  properties.pci_bus_id = bus;
  properties.uuid = absl::BytesToHexString(
      absl::string_view(read.uuid.bytes, sizeof(read.uuid.bytes)));
  properties.compute_major = read.major;
  properties.compute_minor = read.minor;
  properties.memory = static_cast<int64_t>(read.totalGlobalMem);
  properties.multiprocessors = read.multiProcessorCount;
  return properties;
}

class CudaRuntime : public DeviceRuntime {
 public:
  CudaRuntime(int index, DeviceProperties properties)
      : index_(index),
        properties_(std::move(properties)),
        memory_([this](int64_t bytes) { return GetMemory(bytes); },
                [this](void* block) {
                  const Aside aside;
                  Try("freeing memory", [&] { return cudaFree(block); });
                }),
        host_memory_([this](int64_t bytes) { return GetHostMemory(bytes); },
                     [this](void* block) {
                       const Aside aside;
                       Try("freeing memory of the host",
                           [&] { return cudaFreeHost(block); });
                     }) {}

  // Makes the GPU's context, so that the first step does not.
  absl::Status Init() {
    int least = 0;
    return Do("starting to use it", [&] {
      return cudaDeviceGetStreamPriorityRange(&least, &priority_);
    });
  }

  Device device() const override { return Device{Device::Kind::kCuda, index_}; }
  const DeviceProperties& properties() const override { return properties_; }

  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    return TakeFrom(&memory_, "memory", bytes);
  }
  void Free(void* memory) override {
    if (memory != nullptr) memory_.Return(memory);
  }
  absl::StatusOr<void*> AllocateHost(int64_t bytes) override {
    return TakeFrom(&host_memory_, "memory of the host", bytes);
  }
  void FreeHost(void* memory) override {
    if (memory != nullptr) host_memory_.Return(memory);
  }

  absl::StatusOr<DeviceStream> CreateStream() override {
    const Aside aside;
    cudaStream_t stream = nullptr;
    COXSWAIN_RETURN_IF_ERROR(Do("making a stream", [&] {
      return cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                          priority_);
    }));
    return reinterpret_cast<DeviceStream>(stream);
  }
  void DestroyStream(DeviceStream stream) override {
    COXSWAIN_CHECK(stream != nullptr);
    const Aside aside;
    Try("destroying a stream", [&] { return cudaStreamDestroy(Of(stream)); });
  }
  absl::StatusOr<DeviceEvent> CreateEvent() override {
    const Aside aside;
    cudaEvent_t event = nullptr;
    COXSWAIN_RETURN_IF_ERROR(Do("making an event", [&] {
      return cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    }));
    return reinterpret_cast<DeviceEvent>(event);
  }
  void DestroyEvent(DeviceEvent event) override {
    COXSWAIN_CHECK(event != nullptr);
    const Aside aside;
    Try("destroying an event", [&] { return cudaEventDestroy(Of(event)); });
  }

  absl::Status Record(DeviceEvent event, DeviceStream stream) override {
    COXSWAIN_RETURN_IF_ERROR(CheckNotCaptured(stream));
    return Do("recording an event",
              [&] { return cudaEventRecord(Of(event), Of(stream)); });
  }
  absl::Status StreamWait(DeviceStream stream, DeviceEvent event) override {
    COXSWAIN_RETURN_IF_ERROR(CheckNotCaptured(stream));
    return Do("waiting for an event",
              [&] { return cudaStreamWaitEvent(Of(stream), Of(event), 0); });
  }
  absl::StatusOr<bool> HasPassed(DeviceEvent event) override {
    const Aside aside;
    bool passed = true;
    COXSWAIN_RETURN_IF_ERROR(Do("querying an event", [&] {
      const cudaError_t error = cudaEventQuery(Of(event));
      if (error != cudaErrorNotReady) return error;
      cudaGetLastError();  // It counts as one there.
      passed = false;
      return cudaSuccess;
    }));
    return passed;
  }

  absl::Status Copy(void* to, const void* from, int64_t bytes,
                    DeviceStream stream) override {
    COXSWAIN_RETURN_IF_ERROR(CheckCopy(to, from, bytes));
    if (bytes == 0) return absl::OkStatus();
    return Do("copying", [&] {
      return cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                             cudaMemcpyDefault, Of(stream));
    });
  }
  absl::Status Fill(void* to, uint8_t value, int64_t bytes,
                    DeviceStream stream) override {
    COXSWAIN_RETURN_IF_ERROR(CheckCopy(to, to, bytes));
    if (bytes == 0) return absl::OkStatus();
    return Do("filling memory", [&] {
      return cudaMemsetAsync(to, value, static_cast<size_t>(bytes), Of(stream));
    });
  }

  LaunchTarget Target(DeviceStream stream) override {
    LaunchTarget target;
    target.stream = stream;
    target.error = cudaSetDevice(index_);
    // What others left on this thread is not of the launches.
    cudaGetLastError();
    return target;
  }
  absl::Status StatusOf(const LaunchTarget& target) override {
    return CudaStatus(target.error, absl::StrCat("GPU ", index_, ": a launch"));
  }

  absl::Status BeginCapture(DeviceStream stream) override {
    if (stream == nullptr) {
      return absl::InvalidArgumentError(
          "the default stream cannot be captured");
    }
    COXSWAIN_ASSIGN_OR_RETURN(const bool captured, IsCaptured(stream));
    if (captured) {
      return absl::FailedPreconditionError("this stream is being captured");
    }
    return Do("beginning a capture", [&] {
      return cudaStreamBeginCapture(Of(stream),
                                    cudaStreamCaptureModeThreadLocal);
    });
  }
  absl::StatusOr<DeviceGraph> EndCapture(DeviceStream stream) override {
    COXSWAIN_ASSIGN_OR_RETURN(const bool captured, IsCaptured(stream));
    if (!captured) {
      return absl::FailedPreconditionError(
          "the capture of this stream was not begun");
    }
    cudaGraph_t graph = nullptr;
    COXSWAIN_RETURN_IF_ERROR(Do("ending a capture", [&] {
      return cudaStreamEndCapture(Of(stream), &graph);
    }));
    cudaGraphExec_t executable = nullptr;
    const absl::Status status = Do("making a graph", [&] {
      return cudaGraphInstantiateWithFlags(&executable, graph, 0);
    });
    Try("destroying a capture", [&] { return cudaGraphDestroy(graph); });
    COXSWAIN_RETURN_IF_ERROR(status);
    return reinterpret_cast<DeviceGraph>(executable);
  }
  absl::Status LaunchGraph(DeviceGraph graph, DeviceStream stream) override {
    return Do("launching a graph",
              [&] { return cudaGraphLaunch(Of(graph), Of(stream)); });
  }
  void DestroyGraph(DeviceGraph graph) override {
    COXSWAIN_CHECK(graph != nullptr);
    const Aside aside;
    Try("destroying a graph", [&] { return cudaGraphExecDestroy(Of(graph)); });
  }

 private:
  // Makes the GPU current, and calls CUDA.
  template <class Call>
  absl::Status Do(absl::string_view what, const Call& call) const {
    cudaError_t error = cudaSetDevice(index_);
    if (error == cudaSuccess) error = call();
    if (error == cudaSuccess) return absl::OkStatus();
    cudaGetLastError();  // Or the next launch finds it.
    return CudaStatus(error, absl::StrCat("GPU ", index_, ": ", what));
  }
  // For what has no way to fail.
  template <class Call>
  void Try(absl::string_view what, const Call& call) const {
    const absl::Status status = Do(what, call);
    if (status.ok()) return;
    LogWarningOnce(absl::StrCat(index_, what), "gpu_not_released",
                   {{"status", status.ToString()}});
  }

  absl::StatusOr<void*> GetMemory(int64_t bytes) const {
    const Aside aside;
    void* memory = nullptr;
    COXSWAIN_RETURN_IF_ERROR(Do("allocating", [&] {
      return cudaMalloc(&memory, static_cast<size_t>(bytes));
    }));
    return memory;
  }
  absl::StatusOr<void*> GetHostMemory(int64_t bytes) const {
    const Aside aside;
    void* memory = nullptr;
    COXSWAIN_RETURN_IF_ERROR(Do("allocating", [&] {
      return cudaHostAlloc(&memory, static_cast<size_t>(bytes),
                           cudaHostAllocPortable);
    }));
    return memory;
  }
  absl::StatusOr<void*> TakeFrom(BlockCache* cache, absl::string_view kind,
                                 int64_t bytes) {
    if (bytes < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("asked for ", bytes, " bytes of ", kind));
    }
    if (bytes == 0) return nullptr;
    absl::StatusOr<void*> block = cache->Take(bytes);
    if (block.ok()) return block;
    return absl::Status(block.status().code(),
                        absl::StrCat("asked for ", bytes, " bytes of ", kind,
                                     ": ", block.status().message()));
  }

  absl::StatusOr<bool> IsCaptured(DeviceStream stream) const {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    COXSWAIN_RETURN_IF_ERROR(Do("querying a stream", [&] {
      return cudaStreamIsCapturing(Of(stream), &capture);
    }));
    return capture != cudaStreamCaptureStatusNone;
  }
  absl::Status CheckNotCaptured(DeviceStream stream) const {
    COXSWAIN_ASSIGN_OR_RETURN(const bool captured, IsCaptured(stream));
    if (!captured) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "events are not for a stream that is being captured");
  }

  const int index_;
  const DeviceProperties properties_;
  int priority_ = 0;  // the highest
  BlockCache memory_;
  BlockCache host_memory_;
};

}  // namespace

int CudaDeviceCount(std::string* why_none) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  *why_none =
      std::string(CudaStatus(error == cudaSuccess ? cudaErrorNoDevice : error,
                             "no GPU is visible")
                      .message());
  return 0;
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> MakeCudaRuntime(int index) {
  std::string why;
  const int count = CudaDeviceCount(&why);
  if (index < 0 || index >= count) {
    return absl::NotFoundError(
        absl::StrCat("there is no GPU ", index, " among the ", count,
                     " of this process", count == 0 ? ": " : "", why));
  }
  COXSWAIN_ASSIGN_OR_RETURN(DeviceProperties properties, ReadProperties(index));
  auto runtime = std::make_unique<CudaRuntime>(index, std::move(properties));
  COXSWAIN_RETURN_IF_ERROR(runtime->Init());
  return runtime;
}

}  // namespace coxswain
