#include "client/torch/module_tensors.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

// Keeps tensors apart that are registered under several names.
class Once {
 public:
  bool operator()(const Tensor& tensor) {
    return tensor.defined() &&
           seen_.insert(tensor.unsafeGetTensorImpl()).second;
  }

 private:
  std::set<const void*> seen_;
};

std::optional<DType> ToDType(::torch::ScalarType type) {
  switch (type) {
    case ::torch::kFloat32:
      return DType::kFloat32;
    case ::torch::kFloat64:
      return DType::kFloat64;
    case ::torch::kFloat16:
      return DType::kFloat16;
    case ::torch::kBFloat16:
      return DType::kBFloat16;
    default:
      return std::nullopt;
  }
}

constexpr c10::DeviceType kCuda = c10::DeviceType::CUDA;

// Chosen where libtorch's streams have a handle.
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
      "this version of libtorch does not provide the handle of its stream ",
      stream.id(),
      ", on which gradients are computed: set ReducerOptions::caller_stream, "
      "or compute on the default stream"));
}

}  // namespace

std::vector<NamedTensor> TrainableParameters(
    const ::torch::nn::Module& module) {
  std::vector<NamedTensor> result;
  Once once;
  for (const auto& item : module.named_parameters()) {
    const Tensor& tensor = item.value();
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    if (once(tensor)) result.push_back({item.key(), tensor});
  }
  return result;
}

std::vector<NamedTensor> TensorsOf(const ::torch::nn::Module& module) {
  std::vector<NamedTensor> result;
  Once once;
  for (const auto& item : module.named_parameters()) {
    if (once(item.value())) result.push_back({item.key(), item.value()});
  }
  for (const auto& item : module.named_buffers()) {
    if (once(item.value())) result.push_back({item.key(), item.value()});
  }
  return result;
}

absl::StatusOr<ParameterSpec> Describe(const NamedTensor& parameter) {
  const Tensor& tensor = parameter.tensor;
  const std::optional<DType> dtype = ToDType(tensor.scalar_type());
  if (!dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter \"", parameter.name, "\" is of type ",
        ::torch::toString(tensor.scalar_type()),
        "; float32, float64, float16 and bfloat16 can be averaged"));
  }
  ParameterSpec spec;
  spec.name = parameter.name;
  spec.shape = tensor.sizes().vec();
  spec.dtype = *dtype;
  spec.device = ToDevice(tensor.device());
  if (!tensor.is_contiguous()) spec.strides = tensor.strides().vec();
  return spec;
}

std::string DescribeForm(const Tensor& tensor) {
  return absl::StrCat(::torch::toString(tensor.scalar_type()), " [",
                      absl::StrJoin(tensor.sizes().vec(), ", "), "]");
}

std::map<std::string, std::string> DescribeUntrained(
    const ::torch::nn::Module& module) {
  std::map<std::string, std::string> lines;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined() || item.value().requires_grad()) continue;
    lines[absl::StrCat("frozen ", item.key())] = DescribeForm(item.value());
  }
  for (const auto& item : module.named_buffers()) {
    if (!item.value().defined()) continue;
    lines[absl::StrCat("buffer ", item.key())] = DescribeForm(item.value());
  }
  return lines;
}

::torch::ScalarType FromDType(DType dtype) {
  for (const auto type :
       {::torch::kFloat64, ::torch::kFloat16, ::torch::kBFloat16}) {
    if (ToDType(type) == dtype) return type;
  }
  return ::torch::kFloat32;
}

Device ToDevice(const ::torch::Device& device) {
  Device result;
  if (!device.is_cpu()) result.kind = Device::Kind::kCuda;
  if (device.has_index() && !device.is_cpu()) result.index = device.index();
  return result;
}

namespace {

::torch::TensorOptions OptionsOf(const Span& span) {
  const auto options = ::torch::TensorOptions().dtype(FromDType(span.dtype));
  if (span.device.kind == Device::Kind::kCpu) return options;
  return options.device(
      c10::Device(kCuda, static_cast<c10::DeviceIndex>(span.device.index)));
}

}  // namespace

Tensor TensorOf(const Span& span, at::IntArrayRef sizes) {
  return ::torch::from_blob(span.data, sizes, OptionsOf(span));
}

Tensor TensorOf(const Span& span, at::IntArrayRef sizes,
                const std::function<void(void*)>& done) {
  return ::torch::from_blob(span.data, sizes, done, OptionsOf(span));
}

Span ElementsOf(const Tensor& tensor) {
  Span span;
  span.data = tensor.data_ptr();
  span.count = tensor.numel();
  span.dtype = *ToDType(tensor.scalar_type());
  span.device = ToDevice(tensor.device());
  return span;
}

Span BytesOf(const Tensor& tensor) {
  Span span;
  span.data = tensor.data_ptr();
  span.count = static_cast<int64_t>(tensor.nbytes());
  span.dtype = DType::kUInt8;
  span.device = ToDevice(tensor.device());
  return span;
}

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
