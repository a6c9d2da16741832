#ifndef COXSWAIN_TESTS_INTEGRATION_SYNCHRONISATION_NET_H_
#define COXSWAIN_TESTS_INTEGRATION_SYNCHRONISATION_NET_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "client/data/sampler.h"

namespace coxswain {

// What the synchronisation tests train, and on what.

// Layers that low-rank hooks compress, two of them of one shape, and vectors
// and a scalar that they do not.
struct TinyNet : ::torch::nn::Module {
  explicit TinyNet(uint64_t seed);
  ::torch::Tensor forward(const ::torch::Tensor& x);

  ::torch::nn::Linear first{nullptr}, second{nullptr}, out{nullptr};
  ::torch::Tensor scale;
};

// Numbers of samples of an endless data set.
using Samples = std::vector<int64_t>;

// Returns the mean loss over these samples, of which there must be one.
::torch::Tensor MeanLoss(TinyNet& net, const Samples& samples);

// Batches in an epoch of the data set, the last of which is padded.
constexpr int kBatches = 5;
ShardedSampler MakeSampler(int rank, int size);

// Returns the batches of such a sampler in `epochs` epochs, one after the
// other.
std::vector<Samples> Deal(int rank, int size, int epochs);

// An optimizer with a memory, and a schedule for its rate.
constexpr double kLearningRate = 0.01;
constexpr int kRateSteps = 2;  // after that many steps the rate is halved
struct Optimizer {
  explicit Optimizer(TinyNet& net);
  double rate() const;

  ::torch::optim::SGD sgd;
  ::torch::optim::StepLR schedule;
};

using Tensors = std::vector<::torch::Tensor>;
Tensors CopyOfParameters(const TinyNet& net);
// Returns copies of the gradients; undefined ones stay undefined.
Tensors CopyOfGradients(const TinyNet& net);
void SetParameters(TinyNet& net, const Tensors& values);
// Clears gradients as a training loop does: to zeros, or to undefined ones.
void ClearGradients(TinyNet& net, bool undefine);

bool SameBits(const Tensors& a, const Tensors& b);
// Returns |a - b| / |b| over all elements.
double Distance(const Tensors& a, const Tensors& b);
Tensors Mean(const std::vector<Tensors>& all);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_INTEGRATION_SYNCHRONISATION_NET_H_
