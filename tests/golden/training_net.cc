#include "tests/golden/training_net.h"

#include <torch/nn/functional.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <string>

#include "tests/golden/golden_inputs.h"

namespace coxswain {
namespace {

namespace functional = ::torch::nn::functional;
using ::torch::Tensor;

// The streams of inputs.py.
constexpr uint64_t kInitial = 3;
constexpr uint64_t kInput = 4;
constexpr uint64_t kTarget = 5;

Tensor Uniform(uint64_t stream, int64_t step, int rank, int64_t part,
               ::torch::IntArrayRef shape) {
  const auto values = GoldenUniform(
      stream, static_cast<uint64_t>(step), static_cast<uint64_t>(rank),
      static_cast<uint64_t>(part), c10::multiply_integers(shape));
  return ::torch::tensor(values, ::torch::kFloat64).view(shape);
}

void Initialise(TrainingNet& net) {
  const ::torch::NoGradGuard no_grad;
  int64_t index = 0;
  for (const auto& parameter : net.named_parameters()) {
    const Tensor values = Uniform(kInitial, 0, 0, index++, parameter->sizes());
    const bool one =
        parameter.key() == "norm.weight" || parameter.key() == "scale";
    parameter->copy_(one ? 1 + values : 2 * values);
  }
}

// Returns whether the rank uses the branch: in turn no rank, rank 0, rank 1,
// both.
bool UsesBranch(int64_t step, int64_t micro, int rank) {
  return micro == 0 && (step % 4 == rank + 1 || step % 4 == 3);
}

}  // namespace

TrainingNet::TrainingNet(bool branches, ::torch::Dtype dtype) {
  namespace nn = ::torch::nn;
  scale = register_parameter("scale", ::torch::ones({}));
  conv = register_module("conv",
                         nn::Conv2d(nn::Conv2dOptions(2, 6, 3).padding(1)));
  norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({54})));
  hidden = register_module("hidden", nn::Linear(54, 12));
  twice = register_module("twice", nn::Linear(12, 12));
  if (branches) {
    branch = register_module("branch", nn::Linear(12, 12));
    idle = register_module("idle", nn::Linear(3, 2));
  }
  out = register_module("out", nn::Linear(12, 4));
  to(dtype);
  conv->weight.set_data(
      conv->weight.detach().contiguous(::torch::MemoryFormat::ChannelsLast));
  Initialise(*this);
}

Tensor TrainingNet::forward(Tensor x, bool use_branch) {
  x = ::torch::relu(conv->forward(x));
  x = norm->forward(::torch::avg_pool2d(x, 2).flatten(1));
  x = functional::softsign(hidden->forward(x));
  if (use_branch && !branch.is_empty()) {
    x = x + functional::softsign(branch->forward(x));
  }
  x = functional::softsign(twice->forward(x));
  x = functional::softsign(twice->forward(x));
  return scale * out->forward(x);
}

Tensor TrainingLoss(TrainingNet& net, int64_t step, int64_t micro, int rank,
                    int64_t batch) {
  const Tensor x = 8 * Uniform(kInput, step, rank, micro, {batch, 2, 6, 6});
  const Tensor target = 8 * Uniform(kTarget, step, rank, micro, {batch, 4});
  return functional::mse_loss(net.forward(x, UsesBranch(step, micro, rank)),
                              target);
}

std::vector<double> Flatten(const std::vector<Tensor>& tensors) {
  std::vector<double> values;
  for (const Tensor& tensor : tensors) {
    const Tensor wide =
        tensor.detach().to(::torch::kFloat64).contiguous().view(-1);
    const double* const data = wide.data_ptr<double>();
    values.insert(values.end(), data, data + wide.numel());
  }
  return values;
}

}  // namespace coxswain
