#ifndef COXSWAIN_CLIENT_TORCH_ELASTIC_CATCH_UP_PROGRAM_FOR_TEST_H_
#define COXSWAIN_CLIENT_TORCH_ELASTIC_CATCH_UP_PROGRAM_FOR_TEST_H_

#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/torch/elastic/module_catch_up.h"
#include "client/torch/state_bytes.h"
#include "gtest/gtest.h"

namespace coxswain::torch::module_catch_up_test {

using ::torch::Tensor;

using Groups = std::vector<::torch::optim::OptimizerParamGroup>;

// An optimizer of two groups, each of one parameter, with rates of their own.
struct OptimizerKind {
  std::string name;
  std::function<std::unique_ptr<::torch::optim::Optimizer>(
      const std::vector<Tensor>& parameters)>
      make;
  friend std::ostream& operator<<(std::ostream& out,
                                  const OptimizerKind& kind) {
    return out << kind.name;
  }
};

template <class Optimizer, class Options>
OptimizerKind KindOf(const std::string& name, const Options& options) {
  return {name,
          [options](const std::vector<Tensor>& parameters)
              -> std::unique_ptr<::torch::optim::Optimizer> {
            Groups groups;
            for (const double rate : {0.1, 0.01}) {
              auto of_group = std::make_unique<Options>(options);
              of_group->set_lr(rate);
              groups.emplace_back(
                  std::vector<Tensor>{parameters[groups.size()]},
                  std::move(of_group));
            }
            return std::make_unique<Optimizer>(groups, options);
          }};
}

inline OptimizerKind AdamWWithLargest() {
  return KindOf<::torch::optim::AdamW>(
      "AdamW", ::torch::optim::AdamWOptions().weight_decay(0.1).amsgrad(true));
}
inline OptimizerKind SgdWithMomentum() {
  return KindOf<::torch::optim::SGD>(
      "SGD", ::torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
}

// All whose state is known.
inline std::vector<OptimizerKind> KnownKinds() {
  return {
      AdamWWithLargest(),
      KindOf<::torch::optim::Adam>(
          "Adam", ::torch::optim::AdamOptions().weight_decay(0.1)),
      SgdWithMomentum(),
      KindOf<::torch::optim::SGD>(
          "Nesterov",
          ::torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true)),
      KindOf<::torch::optim::SGD>("SGDAlone", ::torch::optim::SGDOptions(0.1)),
      KindOf<::torch::optim::RMSprop>(
          "RMSprop",
          ::torch::optim::RMSpropOptions().momentum(0.9).centered(true)),
      KindOf<::torch::optim::Adagrad>(
          "Adagrad", ::torch::optim::AdagradOptions().lr_decay(0.1))};
}

struct Program {
  Program(const OptimizerKind& kind, double first, int64_t in = 5,
          int64_t out = 3)
      : model(std::make_shared<::torch::nn::LinearImpl>(in, out)) {
    const ::torch::NoGradGuard no_grad;
    for (Tensor& parameter : model->parameters()) parameter.fill_(first);
    optimizer = kind.make(model->parameters());
    auto made = ModuleCatchUp::Create(*model, optimizer.get());
    EXPECT_OK(made);
    catch_up = *std::move(made);
  }

  void SetGradients(double value) const {
    for (const Tensor& parameter : model->parameters()) {
      Tensor(parameter).mutable_grad() =
          ::torch::full_like(parameter.detach(), value);
    }
  }
  void SetRate(double rate) const {
    optimizer->param_groups()[1].options().set_lr(rate);
  }
  std::string Bits() const {
    std::string bits;
    for (const Tensor& parameter : model->parameters()) {
      bits.append(static_cast<const char*>(parameter.data_ptr()),
                  parameter.nbytes());
    }
    return bits;
  }
  uint64_t Digest() const {
    const auto digest = DigestOptimizer(*optimizer);
    EXPECT_OK(digest);
    return digest.value_or(0);
  }

  std::shared_ptr<::torch::nn::LinearImpl> model;
  std::unique_ptr<::torch::optim::Optimizer> optimizer;
  std::unique_ptr<ModuleCatchUp> catch_up;
};

inline void ExpectSame(const Program& a, const Program& b) {
  EXPECT_TRUE(a.Bits() == b.Bits());
  EXPECT_EQ(a.Digest(), b.Digest());
}

}  // namespace coxswain::torch::module_catch_up_test

#endif  // COXSWAIN_CLIENT_TORCH_ELASTIC_CATCH_UP_PROGRAM_FOR_TEST_H_
