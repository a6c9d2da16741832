#include "client/torch/device_stream.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

constexpr c10::DeviceType kCuda = c10::DeviceType::CUDA;

// Chosen where libtorch's streams tell their handle.
template <class Stream>
auto HandleOf(const Stream& stream, int)
    -> decltype(stream.native_handle(), absl::StatusOr<DeviceStream>()) {
  return static_cast<DeviceStream>(stream.native_handle());
}

template <class Stream>
absl::StatusOr<DeviceStream> HandleOf(const Stream& stream, long) {  // NOLINT
  // The default stream, which is null for CUDA too.
  if (stream.id() == 0) return DeviceStream();
  return absl::UnimplementedError(absl::StrCat(
      "this version of libtorch does not tell the handle of its stream ",
      stream.id(),
      ", on which gradients are computed: set ReducerOptions::caller_stream, "
      "or compute on the default stream"));
}

}  // namespace

Device DeviceOf(const ::torch::nn::Module& module) {
  const std::vector<NamedTensor> parameters = TrainableParameters(module);
  return parameters.empty() ? Device()
                            : ToDevice(parameters.front().tensor.device());
}

absl::StatusOr<DeviceStream> CurrentStream(const Device& device) {
  if (!c10::impl::hasDeviceGuardImpl(kCuda)) {
    return absl::UnimplementedError(
        "libtorch was built without CUDA, so it has no stream on a GPU");
  }
  absl::StatusOr<DeviceStream> stream = DeviceStream();
  COXSWAIN_RETURN_IF_ERROR(Guarded("asking for the current stream", [&] {
    const c10::impl::VirtualGuardImpl guard(kCuda);
    stream = HandleOf(guard.getStream(c10::Device(
                          kCuda, static_cast<c10::DeviceIndex>(device.index))),
                      0);
  }));
  return stream;
}

}  // namespace coxswain::torch
