#include "client/torch/tensor/vocab_parallel.h"

#include <torch/autograd.h>
#include <torch/nn/functional/embedding.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

constexpr char kEmbedding[] = "a vocabulary-parallel embedding";
constexpr char kCrossEntropy[] = "a vocabulary-parallel cross entropy";

// Of indices into the whole vocabulary, those that this rank has.
struct OwnIndices {
  Tensor own;    // which of them are
  Tensor index;  // into this rank's part; 0 where they are not
};

OwnIndices FindOwn(const Tensor& indices, const EvenRange& rows) {
  const Tensor own = (indices >= rows.begin).logical_and(indices < rows.end);
  return {own, (indices - rows.begin).masked_fill(own.logical_not(), 0)};
}

// Returns whether indices are of the vocabulary. Otherwise fails `parallel`.
bool AreOf(absl::string_view layer, int64_t vocabulary, const Tensor& indices,
           TensorParallel& parallel) {
  if (indices.scalar_type() != ::torch::kInt64 || !indices.device().is_cpu()) {
    parallel.Fail(absl::InvalidArgumentError(absl::StrCat(
        layer, " got ", DescribeForm(indices), " on ", indices.device().str(),
        " as indices: they must be Long, on the CPU")));
    return false;
  }
  if (indices.numel() == 0) return true;
  for (const int64_t index :
       {indices.min().item<int64_t>(), indices.max().item<int64_t>()}) {
    if (index >= 0 && index < vocabulary) continue;
    parallel.Fail(absl::InvalidArgumentError(
        absl::StrCat(layer, " got the index ", index,
                     ", which is not in its vocabulary of ", vocabulary)));
    return false;
  }
  return true;
}

struct CrossEntropy : ::torch::autograd::Function<CrossEntropy> {
  // Of logits [targets, own part]; `counted` are the targets that count.
  static Tensor forward(::torch::autograd::AutogradContext* context,
                        const Tensor& logits, const OwnIndices& targets,
                        const Tensor& counted,
                        const TensorParallelPtr& parallel) {
    const Tensor highest = parallel->AllReduce(
        std::get<0>(logits.max(/*dim=*/1)).contiguous(), ReduceOp::kMax);
    const Tensor shifted = logits - highest.unsqueeze(1);
    Tensor softmax = shifted.exp();
    const Tensor at_target = shifted.gather(1, targets.index.unsqueeze(1))
                                 .squeeze(1)
                                 .masked_fill(targets.own.logical_not(), 0);
    const Tensor sums =
        parallel->AllReduce(::torch::stack({softmax.sum(1), at_target}));
    Tensor losses =
        (sums[0].log() - sums[1]).masked_fill(counted.logical_not(), 0);
    softmax.div_(sums[0].unsqueeze(1));
    if (parallel->failed()) {
      losses.zero_();
      softmax.zero_();
    }
    context->save_for_backward(
        {softmax, targets.index, targets.own.logical_and(counted), counted});
    return losses;
  }

  static ::torch::autograd::variable_list backward(
      ::torch::autograd::AutogradContext* context,
      ::torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor gradient = gradients[0].masked_fill(saved[3].logical_not(), 0);
    Tensor result = saved[0] * gradient.unsqueeze(1);
    const Tensor of_target = gradient.masked_fill(saved[2].logical_not(), 0);
    result.scatter_add_(1, saved[1].unsqueeze(1), -of_target.unsqueeze(1));
    return {result, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

absl::StatusOr<std::shared_ptr<VocabParallelEmbedding>>
VocabParallelEmbedding::Create(const TensorParallelPtr& parallel,
                               int64_t vocabulary, int64_t features) {
  if (parallel == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(kEmbedding, " needs a TensorParallel: pass one"));
  }
  if (features < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        kEmbedding, " of ", features, " features: there must be some"));
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      const EvenRange rows,
      RangeOfRank(kEmbedding, vocabulary, "rows", *parallel));
  return std::shared_ptr<VocabParallelEmbedding>(
      new VocabParallelEmbedding(parallel, vocabulary, features, rows));
}

VocabParallelEmbedding::VocabParallelEmbedding(TensorParallelPtr parallel,
                                               int64_t vocabulary,
                                               int64_t features,
                                               const EvenRange& rows)
    : Module("VocabParallelEmbedding"),
      parallel_(std::move(parallel)),
      vocabulary_(vocabulary),
      rows_(rows) {
  summed_features_ = features;
  weight_ = register_parameter(
      "weight", ::torch::zeros({rows.end - rows.begin, features}));
  boxes_["weight"] = {{vocabulary, features},
                      {{rows.begin, 0}, {rows.end, features}}};
}

Tensor VocabParallelEmbedding::forward(const Tensor& tokens) {
  if (!AreOf(kEmbedding, vocabulary_, tokens, *parallel_)) {
    std::vector<int64_t> sizes = tokens.sizes().vec();
    if (parallel_->sequence() && !sizes.empty()) {
      sizes.back() /= parallel_->size();
    }
    sizes.push_back(weight_.size(1));
    return TensorParallel::Zeros(sizes, weight_.options());
  }
  const OwnIndices found = FindOwn(tokens, rows_);
  return ReduceFromParallel(
      ::torch::nn::functional::embedding(found.index, weight_)
          .masked_fill(found.own.logical_not().unsqueeze(-1), 0),
      parallel_);
}

Tensor VocabParallelCrossEntropy(const Tensor& logits, const Tensor& targets,
                                 int64_t vocabulary,
                                 const TensorParallelPtr& parallel,
                                 int64_t ignore_index) {
  const auto refused = [&] {
    return TensorParallel::Zeros(targets.sizes(), logits.options());
  };
  const auto rows = RangeOfRank(kCrossEntropy, vocabulary,
                                "words in its vocabulary", *parallel);
  if (!rows.ok()) {
    parallel->Fail(rows.status());
    return refused();
  }
  const int64_t own = rows->end - rows->begin;
  if (!HasFeatures(kCrossEntropy, logits, own, *parallel)) return refused();
  if (logits.numel() / own != targets.numel()) {
    parallel->Fail(absl::InvalidArgumentError(absl::StrCat(
        kCrossEntropy, " got ", targets.numel(), " targets for logits of ",
        DescribeForm(logits), ": each target needs its own")));
    return refused();
  }
  const Tensor flat = targets.reshape({-1});
  const Tensor counted = flat != ignore_index;
  const Tensor words = flat.masked_fill(counted.logical_not(), 0);
  if (!AreOf(kCrossEntropy, vocabulary, words, *parallel)) return refused();
  return CrossEntropy::apply(logits.reshape({-1, own}), FindOwn(words, *rows),
                             counted, parallel)
      .view(targets.sizes());
}

}  // namespace coxswain::torch
