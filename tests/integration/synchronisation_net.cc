#include "tests/integration/synchronisation_net.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace coxswain {
namespace {

namespace nn = ::torch::nn;
using ::torch::Tensor;

constexpr int kWidth = 16;
constexpr int kOutputs = 4;
constexpr int kSamplesPerBatch = 2;

// Random numbers that depend on (stream, samples) alone.
Tensor Rows(uint64_t stream, const Samples& samples, int width) {
  Tensor rows = ::torch::empty({static_cast<int64_t>(samples.size()), width});
  float* out = rows.data_ptr<float>();
  for (const int64_t sample : samples) {
    const CounterRandom random(stream, static_cast<uint64_t>(sample));
    for (int i = 0; i < width; ++i) {
      *out++ = static_cast<float>(random.Normal(static_cast<uint64_t>(i)));
    }
  }
  return rows;
}

}  // namespace

TinyNet::TinyNet(uint64_t seed) {
  first = register_module("first", nn::Linear(kWidth, kWidth));
  second = register_module("second", nn::Linear(kWidth, kWidth));
  out = register_module("out", nn::Linear(kWidth, kOutputs));
  scale = register_parameter("scale", ::torch::ones({}));
  ::torch::NoGradGuard no_grad;
  uint64_t stream = 0;
  for (Tensor& parameter : parameters()) {
    const CounterRandom random(seed, ++stream);
    float* values = parameter.data_ptr<float>();
    for (int64_t i = 0; i < parameter.numel(); ++i) {
      values[i] =
          static_cast<float>(0.25 * random.Normal(static_cast<uint64_t>(i)));
    }
  }
}

Tensor TinyNet::forward(const Tensor& x) {
  const Tensor y = ::torch::tanh(first->forward(x));
  return out->forward(::torch::tanh(second->forward(y))) * scale;
}

Tensor MeanLoss(TinyNet& net, const Samples& samples) {
  const Tensor y = net.forward(Rows(1, samples, kWidth));
  return (y - Rows(2, samples, kOutputs)).square().sum() /
         static_cast<double>(samples.size());
}

ShardedSampler MakeSampler(int rank, int size) {
  SamplerOptions options;
  options.batch_size = kSamplesPerBatch;
  options.rank = rank;
  options.world_size = size;
  options.dataset_size = int64_t{kBatches} * kSamplesPerBatch * size - 1;
  auto sampler = ShardedSampler::Create(options, SamplerState());
  COXSWAIN_CHECK(sampler.ok());
  return *std::move(sampler);
}

std::vector<Samples> Deal(int rank, int size, int epochs) {
  std::vector<Samples> batches;
  ShardedSampler sampler = MakeSampler(rank, size);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    while (auto batch = sampler.NextBatch()) {
      batches.push_back(*std::move(batch));
    }
    sampler.NextEpoch();
  }
  return batches;
}

Optimizer::Optimizer(TinyNet& net)
    : sgd(net.parameters(),
          ::torch::optim::SGDOptions(kLearningRate).momentum(0.9)),
      schedule(sgd, kRateSteps, 0.5) {}

double Optimizer::rate() const {
  return sgd.param_groups()[0].options().get_lr();
}

Tensors CopyOfParameters(const TinyNet& net) {
  Tensors copy;
  for (const Tensor& parameter : net.parameters()) {
    copy.push_back(parameter.detach().clone());
  }
  return copy;
}

Tensors CopyOfGradients(const TinyNet& net) {
  Tensors copy;
  for (const Tensor& parameter : net.parameters()) {
    const Tensor& gradient = parameter.grad();
    copy.push_back(gradient.defined() ? gradient.detach().clone() : Tensor());
  }
  return copy;
}

void SetParameters(TinyNet& net, const Tensors& values) {
  ::torch::NoGradGuard no_grad;
  Tensors parameters = net.parameters();
  for (size_t i = 0; i < values.size(); ++i) parameters[i].copy_(values[i]);
}

void ClearGradients(TinyNet& net, bool undefine) {
  if (!undefine) return net.zero_grad();
  for (Tensor& parameter : net.parameters()) {
    parameter.mutable_grad() = Tensor();
  }
}

bool SameBits(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return false;
    if (a[i].defined() && !::torch::equal(a[i], b[i])) return false;
  }
  return true;
}

double Distance(const Tensors& a, const Tensors& b) {
  double difference = 0;
  double norm = 0;
  COXSWAIN_CHECK(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const Tensor want = b[i].to(::torch::kFloat64);
    difference +=
        (a[i].to(::torch::kFloat64) - want).square().sum().item<double>();
    norm += want.square().sum().item<double>();
  }
  return std::sqrt(difference / norm);
}

Tensors Mean(const std::vector<Tensors>& all) {
  Tensors mean;
  for (size_t i = 0; i < all[0].size(); ++i) {
    Tensor sum = ::torch::zeros_like(all[0][i], ::torch::kFloat64);
    for (const Tensors& one : all) sum += one[i];
    mean.push_back(sum / static_cast<double>(all.size()));
  }
  return mean;
}

}  // namespace coxswain
