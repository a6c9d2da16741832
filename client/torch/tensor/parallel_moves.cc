// How activations go into the divided layers and out of them: functions of
// which each has another one as its backward pass.

#include <torch/autograd.h>
#include <torch/custom_class.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/torch/module_tensors.h"
#include "client/torch/tensor/tensor_parallel.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;
using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;

// What a graph keeps of its TensorParallel.
struct KeptParallel : ::torch::CustomClassHolder {
  explicit KeptParallel(TensorParallelPtr kept) : parallel(std::move(kept)) {}
  const TensorParallelPtr parallel;
};

Tensor Same(const Tensor& x, TensorParallel&) { return x; }

Tensor Sum(const Tensor& x, TensorParallel& parallel) {
  return parallel.AllReduce(x.clone(at::MemoryFormat::Contiguous));
}

// Returns whether a tensor has a sequence that falls into `parts` equal parts.
bool HasSequence(const Tensor& x, int parts, TensorParallel& parallel) {
  if (x.dim() >= 2 && x.size(-2) % parts == 0) return true;
  parallel.Fail(absl::InvalidArgumentError(absl::StrCat(
      "an activation of ", DescribeForm(x), " has no sequence, its dimension ",
      "before the last one, of which ", parts,
      " ranks can have the same number of positions: pad the sequence")));
  return false;
}

// [..., s, h] of each rank -> [..., size s, h].
Tensor JoinSequence(const Tensor& x, TensorParallel& parallel) {
  if (!HasSequence(x, 1, parallel)) return ::torch::zeros_like(x);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[sizes.size() - 2] *= parallel.size();
  return parallel.AllGather(x).movedim(0, -3).reshape(sizes);
}

// [..., size s, h] -> [size, ..., s, h].
Tensor CutSequence(const Tensor& x, TensorParallel& parallel) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[sizes.size() - 2] /= parallel.size();
  sizes.insert(sizes.end() - 2, parallel.size());
  return x.reshape(sizes).movedim(-3, 0);
}

Tensor SumOfPart(const Tensor& x, TensorParallel& parallel) {
  if (!HasSequence(x, parallel.size(), parallel)) {
    return ::torch::zeros_like(x);
  }
  return parallel.ReduceScatter(CutSequence(x, parallel));
}

Tensor OwnPart(const Tensor& x, TensorParallel& parallel) {
  if (!HasSequence(x, parallel.size(), parallel)) {
    return ::torch::zeros_like(x);
  }
  return CutSequence(x, parallel)[parallel.rank()].contiguous();
}

using Move = Tensor (*)(const Tensor&, TensorParallel&);

template <Move kForward, Move kBackward>
struct Moved : ::torch::autograd::Function<Moved<kForward, kBackward>> {
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const TensorParallelPtr& parallel) {
    context->saved_data["parallel"] =
        c10::IValue::make_capsule(c10::make_intrusive<KeptParallel>(parallel));
    context->saved_data["sizes"] = x.sizes().vec();
    return kForward(x, *parallel);
  }

  static variable_list backward(AutogradContext* context,
                                variable_list gradients) {
    const auto kept = context->saved_data["parallel"].toCapsule();
    Tensor gradient =
        kBackward(gradients[0], *static_cast<KeptParallel&>(*kept).parallel);
    // Of an activation that was refused.
    const std::vector<int64_t> sizes =
        context->saved_data["sizes"].toIntVector();
    if (gradient.sizes() != at::IntArrayRef(sizes)) {
      gradient = ::torch::zeros(sizes, gradient.options());
    }
    return {gradient, Tensor()};
  }
};

template <Move kForward, Move kBackward>
Tensor Apply(const Tensor& x, const TensorParallelPtr& parallel) {
  if (parallel->size() == 1) return x;
  return Moved<kForward, kBackward>::apply(x, parallel);
}

}  // namespace

Tensor CopyToParallel(const Tensor& activation,
                      const TensorParallelPtr& parallel) {
  return parallel->sequence()
             ? Apply<JoinSequence, SumOfPart>(activation, parallel)
             : Apply<Same, Sum>(activation, parallel);
}

Tensor ReduceFromParallel(const Tensor& activation,
                          const TensorParallelPtr& parallel) {
  return parallel->sequence()
             ? Apply<SumOfPart, JoinSequence>(activation, parallel)
             : Apply<Sum, Same>(activation, parallel);
}

Tensor ScatterToSequence(const Tensor& activation,
                         const TensorParallelPtr& parallel) {
  return Apply<OwnPart, JoinSequence>(activation, parallel);
}

Tensor GatherFromSequence(const Tensor& activation,
                          const TensorParallelPtr& parallel) {
  return Apply<JoinSequence, OwnPart>(activation, parallel);
}

}  // namespace coxswain::torch
