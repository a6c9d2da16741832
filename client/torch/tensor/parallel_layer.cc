#include "client/torch/tensor/parallel_layer.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

// Without those of its submodules.
int64_t OwnSummedBytes(const ::torch::nn::Module& module) {
  const auto* const layer = dynamic_cast<const ParallelLayer*>(&module);
  const auto parameters = module.parameters();
  if (layer == nullptr || parameters.empty()) return 0;
  return layer->summed_features() *
         static_cast<int64_t>(parameters.front().element_size());
}

}  // namespace

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
    bytes += OwnSummedBytes(part);
  };
  add(module);
  for (const auto& part : module.modules(/*include_self=*/false)) add(*part);
  return bytes;
}

int64_t RepeatedBytes(const ::torch::nn::Module& module, bool sequence) {
  int64_t bytes = 0;
  bool trained = false;  // whether a parameter so far is
  const auto add = [&](const ::torch::nn::Module& part) {
    const bool trained_before = trained;
    for (const auto& parameter : part.parameters(/*recurse=*/false)) {
      trained = trained || parameter.requires_grad();
    }
    const auto* const layer = dynamic_cast<const ParallelLayer*>(&part);
    if (layer == nullptr) return;
    // With sequence parallelism each pass has half of a sum.
    const int64_t own = OwnSummedBytes(part);
    if (layer->sums_inputs()) {
      if (trained_before) bytes += sequence ? own / 2 : own;
    } else if (sequence && trained) {
      bytes += own / 2;
    }
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
