#include "client/device/cuda/cuda_status.h"

#include <string>

#include "absl/strings/str_cat.h"

#ifdef COXSWAIN_CUDA
#include <cuda_runtime.h>
#endif

namespace coxswain {
namespace {

struct Meaning {
  int error;
  absl::StatusCode code;
  const char* name;  // without cudaError
  const char* advice;
};

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kNotReady = absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kCannot = absl::StatusCode::kUnimplemented;
constexpr absl::StatusCode kLost = absl::StatusCode::kUnavailable;
constexpr absl::StatusCode kExhausted = absl::StatusCode::kResourceExhausted;

constexpr char kMemory[] =
    "give the GPU less to hold: smaller batches or buckets, fewer processes";
constexpr char kDriver[] =
    "install NVIDIA's driver, or a newer one; nvidia-smi shows what is there";
constexpr char kVisible[] =
    "see CUDA_VISIBLE_DEVICES, and what nvidia-smi lists";
constexpr char kBusy[] = "see with nvidia-smi who else uses the GPU, and how";
constexpr char kBuild[] =
    "build with COXSWAIN_CUDA_ARCHITECTURES set to what this GPU is";
constexpr char kRestart[] =
    "this process must be started anew to use the GPU; see the kernel's log "
    "(dmesg, Xid) for what happened";
constexpr char kCapture[] =
    "what is enqueued while a stream is being captured cannot be captured";

constexpr Meaning kMeanings[] = {
    {1, kInvalid, "InvalidValue", ""},
    {2, kExhausted, "MemoryAllocation", kMemory},
    {3, kNotReady, "InitializationError", kDriver},
    {4, kLost, "CudartUnloading", "the process is ending"},
    {9, kInvalid, "InvalidConfiguration", ""},
    {17, kInvalid, "InvalidDevicePointer", ""},
    {21, kInvalid, "InvalidMemcpyDirection", ""},
    {34, kNotReady, "StubLibrary", kDriver},
    {35, kNotReady, "InsufficientDriver", kDriver},
    {46, kNotReady, "DevicesUnavailable", kBusy},
    {100, kNotReady, "NoDevice", kVisible},
    {101, kNotReady, "InvalidDevice", kVisible},
    {209, kNotReady, "NoKernelImageForDevice", kBuild},
    {214, kLost, "ECCUncorrectable", kRestart},
    {220, kLost, "NvlinkUncorrectable", kRestart},
    {222, kNotReady, "UnsupportedPtxVersion", kDriver},
    {400, kInvalid, "InvalidResourceHandle", ""},
    {401, kNotReady, "IllegalState", ""},
    {700, kLost, "IllegalAddress", kRestart},
    {701, kExhausted, "LaunchOutOfResources", ""},
    {702, kLost, "LaunchTimeout", kRestart},
    {709, kLost, "ContextIsDestroyed", kRestart},
    {710, kLost, "Assert", kRestart},
    {714, kLost, "HardwareStackError", kRestart},
    {715, kLost, "IllegalInstruction", kRestart},
    {716, kLost, "MisalignedAddress", kRestart},
    {717, kLost, "InvalidAddressSpace", kRestart},
    {718, kLost, "InvalidPc", kRestart},
    {719, kLost, "LaunchFailure", kRestart},
    {801, kCannot, "NotSupported", ""},
    {802, kNotReady, "SystemNotReady", "start nvidia-fabricmanager"},
    {803, kNotReady, "SystemDriverMismatch", kDriver},
    {804, kNotReady, "CompatNotSupportedOnDevice", kDriver},
    {900, kCannot, "StreamCaptureUnsupported", kCapture},
    {901, kNotReady, "StreamCaptureInvalidated", kCapture},
    {902, kNotReady, "StreamCaptureMerge", kCapture},
    {903, kNotReady, "StreamCaptureUnmatched", kCapture},
    {904, kNotReady, "StreamCaptureUnjoined", kCapture},
    {905, kNotReady, "StreamCaptureIsolation", kCapture},
    {906, kNotReady, "StreamCaptureImplicit", kCapture},
    {907, kNotReady, "CapturedEvent", kCapture},
    {908, kNotReady, "StreamCaptureWrongThread", kCapture},
    {911, kLost, "ExternalDevice", kRestart},
    {999, kLost, "Unknown", kRestart},
};

const Meaning* Find(int error) {
  for (const Meaning& meaning : kMeanings) {
    if (meaning.error == error) return &meaning;
  }
  return nullptr;
}

// "cudaErrorNoDevice (100): no CUDA-capable device is detected", as far as
// this build knows.
std::string Describe(int error, const Meaning* meaning) {
#ifdef COXSWAIN_CUDA
  (void)meaning;
  const auto code = static_cast<cudaError_t>(error);
  return absl::StrCat(cudaGetErrorName(code), " (", error,
                      "): ", cudaGetErrorString(code));
#else
  return absl::StrCat("cudaError", meaning ? meaning->name : "", " (", error,
                      ")");
#endif
}

}  // namespace

absl::Status CudaStatus(int error, absl::string_view what) {
  if (error == 0) return absl::OkStatus();
  const Meaning* const meaning = Find(error);
  std::string text = absl::StrCat(what, ": ", Describe(error, meaning));
  if (meaning == nullptr) return absl::InternalError(text);
  if (meaning->advice[0] != '\0') absl::StrAppend(&text, "; ", meaning->advice);
  return absl::Status(meaning->code, text);
}

}  // namespace coxswain
