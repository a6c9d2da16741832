#ifndef COXSWAIN_TESTS_GOLDEN_TRAINING_NET_H_
#define COXSWAIN_TESTS_GOLDEN_TRAINING_NET_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace coxswain {

// The model of training.py, with the same initial parameters, bit by bit.
struct TrainingNet : ::torch::nn::Module {
  // With `branches` it has layers that are used now and then, or never.
  TrainingNet(bool branches, ::torch::Dtype dtype);

  ::torch::Tensor forward(::torch::Tensor x, bool use_branch);

  ::torch::Tensor scale;
  ::torch::nn::Conv2d conv{nullptr};
  ::torch::nn::LayerNorm norm{nullptr};
  ::torch::nn::Linear hidden{nullptr}, twice{nullptr}, branch{nullptr},
      idle{nullptr}, out{nullptr};
};

// Returns rank `rank`'s loss on its micro-batch of a step, in float64.
::torch::Tensor TrainingLoss(TrainingNet& net, int64_t step, int64_t micro,
                             int rank, int64_t batch);

// Returns all elements, row-major, one tensor after the other.
std::vector<double> Flatten(const std::vector<::torch::Tensor>& tensors);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_GOLDEN_TRAINING_NET_H_
