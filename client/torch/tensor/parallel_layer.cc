#include "client/torch/tensor/parallel_layer.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {

ParameterBoxes BoxesOf(const ::torch::nn::Module& module) {
  ParameterBoxes boxes;
  const auto add = [&boxes](const std::string& prefix,
                            const ::torch::nn::Module& part) {
    const auto* const layer = dynamic_cast<const ParallelLayer*>(&part);
    if (layer == nullptr) return;
    for (const auto& [name, box] : layer->boxes()) {
      boxes[prefix.empty() ? name : absl::StrCat(prefix, ".", name)] = box;
    }
  };
  add("", module);
  for (const auto& part :
       module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    add(part.key(), *part.value());
  }
  return boxes;
}

int64_t SummedBytes(const ::torch::nn::Module& module) {
  int64_t bytes = 0;
  const auto add = [&bytes](const ::torch::nn::Module& part) {
    const auto* const layer = dynamic_cast<const ParallelLayer*>(&part);
    const auto parameters = part.parameters();
    if (layer == nullptr || parameters.empty()) return;
    bytes += layer->summed_features() *
             static_cast<int64_t>(parameters.front().element_size());
  };
  add(module);
  for (const auto& part : module.modules(/*include_self=*/false)) add(*part);
  return bytes;
}

absl::StatusOr<EvenRange> RangeOfRank(absl::string_view layer, int64_t count,
                                      absl::string_view things,
                                      const TensorParallel& parallel) {
  if (count < parallel.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        layer, " has ", count, " ", things, ", which cannot be divided among ",
        parallel.size(), " ranks: make the mesh's tp at most ", count));
  }
  return EvenRange::Of(count, parallel.size(), parallel.rank());
}

bool HasFeatures(absl::string_view layer, const ::torch::Tensor& input,
                 int64_t features, TensorParallel& parallel) {
  if (input.dim() >= 1 && input.size(-1) == features) return true;
  parallel.Fail(absl::InvalidArgumentError(absl::StrCat(
      layer, " got an input of ", DescribeForm(input), ", and computes with ",
      features, " features: its last dimension must be ", features)));
  return false;
}

std::vector<int64_t> WithFeatures(const ::torch::Tensor& input,
                                  int64_t features) {
  std::vector<int64_t> sizes = input.sizes().vec();
  if (sizes.empty()) return {features};
  sizes.back() = features;
  return sizes;
}

}  // namespace coxswain::torch
