#include "client/torch/tensor/parallel_linear.h"

#include <torch/nn/functional/linear.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

constexpr char kColumn[] = "a column-parallel linear layer";
constexpr char kRow[] = "a row-parallel linear layer";

// Returns which of the divided features this rank has.
absl::StatusOr<EvenRange> FeaturesOfRank(absl::string_view layer,
                                         const ParallelLinearOptions& options,
                                         int64_t divided,
                                         const TensorParallelPtr& parallel) {
  if (parallel == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(layer, " needs a TensorParallel: pass one"));
  }
  if (options.in_features < 1 || options.out_features < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(layer, " of ", options.in_features, " inputs and ",
                     options.out_features, " outputs: there must be some"));
  }
  if (options.unit < 1 || divided % options.unit != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        layer, " has ", divided, " features to be divided in units of ",
        options.unit, ", which is no divisor of them"));
  }
  COXSWAIN_ASSIGN_OR_RETURN(EvenRange range,
                            RangeOfRank(layer, divided / options.unit,
                                        "units of features", *parallel));
  range.begin *= options.unit;
  range.end *= options.unit;
  return range;
}

// Returns what takes the place of a refused input's products. It still goes
// through the layer's collective, which after an error moves nothing, and gives
// it the length that the result has where the sequence is divided.
Tensor ZerosFor(const Tensor& input, int64_t features, const Tensor& weight) {
  return TensorParallel::Zeros(WithFeatures(input, features), weight.options());
}

}  // namespace

absl::StatusOr<std::shared_ptr<ColumnParallelLinear>>
ColumnParallelLinear::Create(const TensorParallelPtr& parallel,
                             const ParallelLinearOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const EvenRange outputs,
      FeaturesOfRank(kColumn, options, options.out_features, parallel));
  return std::shared_ptr<ColumnParallelLinear>(
      new ColumnParallelLinear(parallel, options, outputs));
}

ColumnParallelLinear::ColumnParallelLinear(TensorParallelPtr parallel,
                                           const ParallelLinearOptions& options,
                                           const EvenRange& outputs)
    : Module("ColumnParallelLinear"),
      parallel_(std::move(parallel)),
      in_features_(options.in_features),
      outputs_(outputs) {
  summed_features_ = in_features_;
  sums_inputs_ = true;
  const int64_t own = outputs.end - outputs.begin;
  weight_ = register_parameter("weight", ::torch::zeros({own, in_features_}));
  boxes_["weight"] = {{options.out_features, in_features_},
                      {{outputs.begin, 0}, {outputs.end, in_features_}}};
  if (!options.bias) return;
  bias_ = register_parameter("bias", ::torch::zeros({own}));
  boxes_["bias"] = {{options.out_features}, {{outputs.begin}, {outputs.end}}};
}

Tensor ColumnParallelLinear::forward(const Tensor& input) {
  if (!HasFeatures(kColumn, input, in_features_, *parallel_)) {
    return CopyToParallel(ZerosFor(input, weight_.size(0), weight_), parallel_);
  }
  return ::torch::nn::functional::linear(CopyToParallel(input, parallel_),
                                         weight_, bias_);
}

absl::StatusOr<std::shared_ptr<RowParallelLinear>> RowParallelLinear::Create(
    const TensorParallelPtr& parallel, const ParallelLinearOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const EvenRange inputs,
      FeaturesOfRank(kRow, options, options.in_features, parallel));
  return std::shared_ptr<RowParallelLinear>(
      new RowParallelLinear(parallel, options, inputs));
}

RowParallelLinear::RowParallelLinear(TensorParallelPtr parallel,
                                     const ParallelLinearOptions& options,
                                     const EvenRange& inputs)
    : Module("RowParallelLinear"),
      parallel_(std::move(parallel)),
      out_features_(options.out_features),
      inputs_(inputs) {
  summed_features_ = out_features_;
  weight_ = register_parameter(
      "weight", ::torch::zeros({out_features_, inputs.end - inputs.begin}));
  boxes_["weight"] = {{out_features_, options.in_features},
                      {{0, inputs.begin}, {out_features_, inputs.end}}};
  if (options.bias) {
    bias_ = register_parameter("bias", ::torch::zeros({out_features_}));
  }
}

Tensor RowParallelLinear::forward(const Tensor& input) {
  if (!HasFeatures(kRow, input, weight_.size(1), *parallel_)) {
    return ReduceFromParallel(ZerosFor(input, out_features_, weight_),
                              parallel_);
  }
  const Tensor sum = ReduceFromParallel(
      ::torch::nn::functional::linear(input, weight_), parallel_);
  return bias_.defined() ? sum + bias_ : sum;
}

}  // namespace coxswain::torch
