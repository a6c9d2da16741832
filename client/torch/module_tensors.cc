#include "client/torch/module_tensors.h"

#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"

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

std::string Form(const Tensor& tensor) {
  return absl::StrCat(::torch::toString(tensor.scalar_type()), " [",
                      absl::StrJoin(tensor.sizes().vec(), ", "), "]");
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

std::map<std::string, std::string> DescribeUntrained(
    const ::torch::nn::Module& module) {
  std::map<std::string, std::string> lines;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined() || item.value().requires_grad()) continue;
    lines[absl::StrCat("frozen ", item.key())] = Form(item.value());
  }
  for (const auto& item : module.named_buffers()) {
    if (!item.value().defined()) continue;
    lines[absl::StrCat("buffer ", item.key())] = Form(item.value());
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

}  // namespace coxswain::torch
