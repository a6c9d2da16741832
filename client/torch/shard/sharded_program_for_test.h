#ifndef COXSWAIN_CLIENT_TORCH_SHARD_SHARDED_PROGRAM_FOR_TEST_H_
#define COXSWAIN_CLIENT_TORCH_SHARD_SHARDED_PROGRAM_FOR_TEST_H_

#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/communicator.h"
#include "client/reduce/hook.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/shard/sharded_optimizer.h"

namespace coxswain::torch {

// Seven parameters of odd sizes, so that slices begin and end within them.
class OddModel : public ::torch::nn::Module {
 public:
  explicit OddModel(::torch::ScalarType type = ::torch::kFloat32) {
    const std::vector<std::vector<int64_t>> shapes = {
        {37, 5}, {5}, {11, 13}, {1}, {101}, {3, 3, 7}, {19, 2}};
    const ::torch::NoGradGuard no_grad;
    for (const auto& shape : shapes) {
      const int64_t count = ::torch::zeros(shape).numel();
      const double number = static_cast<double>(weights_.size()) + 1;
      weights_.push_back(register_parameter(
          absl::StrCat("w", weights_.size()),
          ::torch::sin(::torch::arange(count, ::torch::kFloat64) * number)
              .view(shape)
              .to(type)));
    }
  }

  // Returns the loss of a rank's batch, by the weights from `first` on only.
  ::torch::Tensor Loss(int batch, size_t first = 0) {
    ::torch::Tensor loss = ::torch::zeros({}, weights_[0].options());
    for (size_t i = first; i < weights_.size(); ++i) {
      const ::torch::Tensor data =
          ::torch::cos(::torch::arange(weights_[i].numel(), ::torch::kFloat64) *
                           0.7 +
                       3.1 * batch + static_cast<double>(i))
              .view(weights_[i].sizes())
              .to(weights_[i].scalar_type());
      loss = loss + (weights_[i] * data - data.square()).square().mean();
    }
    return loss;
  }

  const std::vector<::torch::Tensor>& weights() const { return weights_; }
  std::vector<::torch::Tensor> Values() const {
    std::vector<::torch::Tensor> values;
    for (const ::torch::Tensor& weight : weights_) {
      values.push_back(weight.detach().clone());
    }
    return values;
  }

 private:
  std::vector<::torch::Tensor> weights_;
};

using MakeOptimizer = std::function<std::unique_ptr<::torch::optim::Optimizer>(
    std::vector<::torch::optim::OptimizerParamGroup>)>;

struct NamedOptimizer {
  std::string name;
  MakeOptimizer make;
};

template <class Optimizer, class Options>
NamedOptimizer Named(const std::string& name, const Options& options) {
  return {name,
          [options](std::vector<::torch::optim::OptimizerParamGroup> groups) {
            return std::make_unique<Optimizer>(std::move(groups), options);
          }};
}

// Every element-wise optimizer of libtorch.
inline std::vector<NamedOptimizer> ElementWise() {
  namespace optim = ::torch::optim;
  return {
      Named<optim::SGD>(
          "sgd", optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01)),
      Named<optim::Adam>("adam", optim::AdamOptions(0.02).amsgrad(true)),
      Named<optim::AdamW>("adamw", optim::AdamWOptions(0.02).weight_decay(0.1)),
      Named<optim::RMSprop>(
          "rmsprop", optim::RMSpropOptions(0.01).momentum(0.5).centered(true)),
      Named<optim::Adagrad>("adagrad", optim::AdagradOptions(0.05))};
}

// A training program of one rank: sharded if options.zero is above 0.
class ShardedProgram {
 public:
  ShardedProgram(Communicator* communicator, std::unique_ptr<Hook> hook,
                 const DistributedDataParallelOptions& options,
                 const MakeOptimizer& make,
                 ::torch::ScalarType type = ::torch::kFloat32)
      : model(std::make_shared<OddModel>(type)), rank_(communicator->rank()) {
    std::vector<::torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(model->parameters());
    optimizer = make(std::move(groups));
    auto created = DistributedDataParallel::Create(model, communicator,
                                                   std::move(hook), options);
    EXPECT_OK(created);
    ddp = std::move(created).value();
    if (options.zero == 0) return;
    auto made = ShardedOptimizer::Create(*ddp, *optimizer);
    EXPECT_OK(made);
    sharded = std::move(made).value();
  }

  // Runs a micro-batch.
  void Run(int batch, size_t first = 0) {
    const MicroBatch micro = ddp->Accumulate();
    ASSERT_OK(ddp->Backward(model->Loss(1000 * rank_ + batch, first), micro));
    if (!micro.sync) return;
    ASSERT_OK(Step());
  }
  absl::StatusOr<bool> Step() {
    return sharded != nullptr ? sharded->Step()
                              : ddp->StepOptimizer(*optimizer);
  }

  std::shared_ptr<OddModel> model;
  std::unique_ptr<::torch::optim::Optimizer> optimizer;
  std::unique_ptr<DistributedDataParallel> ddp;
  std::unique_ptr<ShardedOptimizer> sharded;

 private:
  const int rank_;
};

// Returns what one process comes to that has all ranks' batches, and clips if
// max_norm is above 0.
inline std::vector<::torch::Tensor> TrainAlone(const MakeOptimizer& make,
                                               int ranks, int steps,
                                               double max_norm = 0) {
  OddModel model(::torch::kFloat64);
  std::vector<::torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(model.parameters());
  const auto optimizer = make(std::move(groups));
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      (model.Loss(1000 * rank + step) / ranks).backward();
    }
    if (max_norm > 0) {
      ::torch::nn::utils::clip_grad_norm_(model.parameters(), max_norm);
    }
    optimizer->step();
  }
  return model.Values();
}

// Fails the test unless the parameters are these, but for rounding in float64.
inline void ExpectClose(const OddModel& model,
                        const std::vector<::torch::Tensor>& expected,
                        const std::string& what) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference =
        (model.weights()[i] - expected[i]).abs().max().item<double>();
    EXPECT_LE(difference, 1e-12 * expected[i].abs().max().item<double>())
        << what << ", parameter " << i;
  }
}

// Fails the test unless both have the same bits.
inline void ExpectSameBits(const OddModel& one, const OddModel& other,
                           const std::string& what) {
  for (size_t i = 0; i < one.weights().size(); ++i) {
    EXPECT_TRUE(::torch::equal(one.weights()[i], other.weights()[i]))
        << what << ", parameter " << i;
  }
}

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_SHARD_SHARDED_PROGRAM_FOR_TEST_H_
