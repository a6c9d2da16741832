#include "client/torch/tensor/parallel_attention.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

constexpr char kAttention[] = "a parallel self-attention";

}  // namespace

absl::StatusOr<std::shared_ptr<ParallelSelfAttention>>
ParallelSelfAttention::Create(const TensorParallelPtr& parallel,
                              const ParallelAttentionOptions& options) {
  if (parallel == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(kAttention, " needs a TensorParallel: pass one"));
  }
  if (options.features < 1 || options.heads < 1 ||
      options.features % options.heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        kAttention, " of ", options.features, " features and ", options.heads,
        " heads: each head needs the same number of features"));
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      const EvenRange heads,
      RangeOfRank(kAttention, options.heads, "heads", *parallel));
  ParallelLinearOptions linear;
  linear.bias = options.bias;
  linear.unit = 3 * options.features / options.heads;
  linear.in_features = options.features;
  linear.out_features = 3 * options.features;
  COXSWAIN_ASSIGN_OR_RETURN(auto qkv,
                            ColumnParallelLinear::Create(parallel, linear));
  linear.unit = options.features / options.heads;
  linear.out_features = options.features;
  COXSWAIN_ASSIGN_OR_RETURN(auto out,
                            RowParallelLinear::Create(parallel, linear));
  return std::shared_ptr<ParallelSelfAttention>(new ParallelSelfAttention(
      parallel, options, heads, std::move(qkv), std::move(out)));
}

ParallelSelfAttention::ParallelSelfAttention(
    TensorParallelPtr parallel, const ParallelAttentionOptions& options,
    const EvenRange& heads, std::shared_ptr<ColumnParallelLinear> qkv,
    std::shared_ptr<RowParallelLinear> out)
    : Module("ParallelSelfAttention"),
      parallel_(std::move(parallel)),
      options_(options),
      heads_(heads),
      qkv_(register_module("qkv", std::move(qkv))),
      out_(register_module("out", std::move(out))) {
  if (options.dropout != nullptr) register_module("dropout", options.dropout);
}

Tensor ParallelSelfAttention::forward(const Tensor& input) {
  if (input.dim() != 3) {
    parallel_->Fail(absl::InvalidArgumentError(
        absl::StrCat(kAttention, " got an input of ", DescribeForm(input),
                     ": it must be [batch, sequence, features]")));
    return TensorParallel::Zeros(input.sizes(), input.options());
  }
  const Tensor projected = qkv_->forward(input);
  const int64_t batch = projected.size(0);
  const int64_t length = projected.size(1);
  const int64_t own = heads_.end - heads_.begin;
  const int64_t width = options_.features / options_.heads;
  // [query, key or value][batch, head, position, width].
  const Tensor parts =
      projected.view({batch, length, own, 3, width}).permute({3, 0, 2, 1, 4});
  Tensor scores = parts[0].matmul(parts[1].transpose(-2, -1)) /
                  std::sqrt(static_cast<double>(width));
  if (options_.causal) {
    const Tensor later =
        ::torch::ones({length, length}, ::torch::kBool).triu(/*diagonal=*/1);
    scores =
        scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  }
  Tensor probabilities = scores.softmax(-1);
  if (options_.dropout != nullptr) {
    probabilities = options_.dropout->DropPart(
        probabilities, {1, heads_.begin, options_.heads});
  }
  return out_->forward(probabilities.matmul(parts[2]).transpose(1, 2).reshape(
      {batch, length, own * width}));
}

}  // namespace coxswain::torch
