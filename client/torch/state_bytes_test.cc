// The digest of an optimizer's state.

#include "client/torch/state_bytes.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/torch/optimizer_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::torch::state_bytes_test {
namespace {

namespace optim = ::torch::optim;
using ::torch::Tensor;

using Maker = std::function<std::unique_ptr<optim::Optimizer>(
    const std::vector<Tensor>& parameters)>;

std::string KeyOf(const Tensor& parameter) {
  return c10::guts::to_string(parameter.unsafeGetTensorImpl());
}

// Two parameters of one form, and an optimizer of them.
struct Program {
  explicit Program(const Maker& make) : optimizer(make(parameters)) {}

  void Train(int steps) {
    for (int step = 1; step <= steps; ++step) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        parameters[i].mutable_grad() =
            ::torch::full({3, 2, 2, 4}, step + 0.25 * static_cast<double>(i));
      }
      optimizer->step();
    }
  }
  uint64_t Digest() const {
    const auto digest = DigestOptimizer(*optimizer);
    EXPECT_OK(digest);
    return digest.value_or(0);
  }

  std::vector<Tensor> parameters = {::torch::ones({3, 2, 2, 4}),
                                    ::torch::ones({3, 2, 2, 4})};
  std::unique_ptr<optim::Optimizer> optimizer;
};

template <typename Optimizer, typename Options>
Maker MakerOf(const Options& options) {
  return [options](const std::vector<Tensor>& parameters) {
    return std::make_unique<Optimizer>(parameters, options);
  };
}

const Maker& Momentum() {
  static const auto* const maker =
      new Maker(MakerOf<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9)));
  return *maker;
}

// Each known kind, with all that it may keep.
std::map<std::string, Maker> Kinds() {
  return {
      {"SGD", Momentum()},
      {"Adam", MakerOf<optim::Adam>(optim::AdamOptions(0.1).amsgrad(true))},
      {"AdamW", MakerOf<optim::AdamW>(optim::AdamWOptions(0.1).amsgrad(true))},
      {"RMSprop", MakerOf<optim::RMSprop>(
                      optim::RMSpropOptions(0.1).momentum(0.9).centered(true))},
      {"Adagrad", MakerOf<optim::Adagrad>(optim::AdagradOptions(0.1))}};
}

// An optimizer that is not known, and keeps what SGD does.
class Own : public optim::Optimizer {
 public:
  explicit Own(const std::vector<Tensor>& parameters)
      : Optimizer({optim::OptimizerParamGroup(parameters)},
                  std::make_unique<optim::SGDOptions>(0.1)) {}
  Tensor step(LossClosure) override { return Tensor(); }
};

// What a class that is derived from a known one keeps in place of its state.
struct OwnState : public optim::OptimizerCloneableParamState<OwnState> {
  void serialize(::torch::serialize::OutputArchive& archive) const override {
    archive.write("own", tensor);
  }
  Tensor tensor = ::torch::ones({2});
};

class DerivedAdam : public optim::Adam {
 public:
  using Adam::Adam;
  Tensor step(LossClosure) override {
    for (const Tensor& parameter : param_groups()[0].params()) {
      state()[KeyOf(parameter)] = std::make_unique<OwnState>();
    }
    return Tensor();
  }
};

TEST(OptimizerDigestTest, TheSameStateHasTheSameOneHoweverItCame) {
  for (const auto& [name, make] : Kinds()) {
    Program trained(make);
    trained.Train(3);
    Program again(make);
    again.Train(3);
    EXPECT_EQ(again.Digest(), trained.Digest()) << name;

    Program loaded(make);
    ASSERT_OK_AND_ASSIGN(const std::string bytes,
                         SaveOptimizer(*trained.optimizer));
    ASSERT_OK(LoadOptimizer(bytes, loaded.optimizer.get()));
    EXPECT_EQ(loaded.Digest(), trained.Digest()) << name;

    Program set(make);
    for (size_t i = 0; i < set.parameters.size(); ++i) {
      const SliceState state =
          StateOf(*trained.optimizer, trained.parameters[i]);
      ASSERT_OK(SetState(*set.optimizer, set.parameters[i], state.steps,
                         [&](const std::string& field,
                             const Tensor& to) -> absl::StatusOr<bool> {
                           for (const auto& [one, tensor] : state.tensors) {
                             if (one != field) continue;
                             to.copy_(tensor);
                             return true;
                           }
                           return false;
                         }));
    }
    EXPECT_EQ(set.Digest(), trained.Digest()) << name;
  }
}

TEST(OptimizerDigestTest, EachTensorCounts) {
  for (const auto& [name, make] : Kinds()) {
    Program program(make);
    program.Train(2);
    const uint64_t before = program.Digest();
    for (const Tensor& parameter : program.parameters) {
      const SliceState state = StateOf(*program.optimizer, parameter);
      ASSERT_FALSE(state.tensors.empty()) << name;
      for (const auto& [field, tensor] : state.tensors) {
        const Tensor last = tensor.view(-1)[-1];
        const Tensor kept = last.clone();
        last.add_(0.5);
        EXPECT_NE(program.Digest(), before) << name << ", " << field;
        last.copy_(kept);
        EXPECT_EQ(program.Digest(), before) << name << ", " << field;
      }
    }
  }
}

TEST(OptimizerDigestTest, TheStepsCount) {
  Program program(Kinds()["Adam"]);
  program.Train(2);
  const uint64_t before = program.Digest();
  for (const Tensor& parameter : program.parameters) {
    auto& state = static_cast<optim::AdamParamState&>(
        *program.optimizer->state()[KeyOf(parameter)]);
    state.step(3);
    EXPECT_NE(program.Digest(), before);
    state.step(2);
    EXPECT_EQ(program.Digest(), before);
  }
}

TEST(OptimizerDigestTest, TheLearningRateCounts) {
  Program program(Momentum());
  program.Train(1);
  const uint64_t before = program.Digest();
  program.optimizer->param_groups()[0].options().set_lr(0.05);
  EXPECT_NE(program.Digest(), before);
}

TEST(OptimizerDigestTest, WhoseStateItIsCounts) {
  Program program(Momentum());
  program.Train(1);
  const uint64_t before = program.Digest();
  auto& states = program.optimizer->state();
  std::swap(states[KeyOf(program.parameters[0])],
            states[KeyOf(program.parameters[1])]);
  EXPECT_NE(program.Digest(), before);
}

TEST(OptimizerDigestTest, WhatIsMissingIsNotZero) {
  Program program(Kinds()["Adam"]);
  program.Train(1);
  auto& state = static_cast<optim::AdamParamState&>(
      *program.optimizer->state()[KeyOf(program.parameters[1])]);
  state.max_exp_avg_sq().zero_();
  const uint64_t zeros = program.Digest();
  state.max_exp_avg_sq(Tensor());
  EXPECT_NE(program.Digest(), zeros);
}

TEST(OptimizerDigestTest, AnEmptyStateIsNone) {
  Program program(Momentum());
  const uint64_t none = program.Digest();
  program.optimizer->state()[KeyOf(program.parameters[0])] =
      std::make_unique<optim::SGDParamState>();
  EXPECT_EQ(program.Digest(), none);
}

TEST(OptimizerDigestTest, ElementsCountAndNotTheirStrides) {
  Program program(Momentum());
  program.Train(1);
  auto& state = static_cast<optim::SGDParamState&>(
      *program.optimizer->state()[KeyOf(program.parameters[0])]);
  state.momentum_buffer(::torch::rand({3, 2, 2, 4}));
  const uint64_t before = program.Digest();
  state.momentum_buffer(
      state.momentum_buffer().contiguous(at::MemoryFormat::ChannelsLast));
  ASSERT_FALSE(state.momentum_buffer().is_contiguous());
  EXPECT_EQ(program.Digest(), before);
  // The same memory, as another form.
  state.momentum_buffer(state.momentum_buffer().contiguous().view({6, 8}));
  EXPECT_NE(program.Digest(), before);
}

TEST(OptimizerDigestTest, WhatAnUnknownOptimizerKeepsCounts) {
  const Maker make = [](const std::vector<Tensor>& parameters) {
    return std::make_unique<Own>(parameters);
  };
  Program program(make);
  Program same(make);
  const uint64_t none = program.Digest();
  for (Program* one : {&program, &same}) {
    auto state = std::make_unique<optim::SGDParamState>();
    state->momentum_buffer(::torch::ones({3, 2, 2, 4}));
    one->optimizer->state()[KeyOf(one->parameters[1])] = std::move(state);
  }
  const uint64_t before = program.Digest();
  EXPECT_NE(before, none);
  EXPECT_EQ(same.Digest(), before);
  static_cast<optim::SGDParamState&>(
      *program.optimizer->state()[KeyOf(program.parameters[1])])
      .momentum_buffer()
      .view(-1)[0]
      .add_(0.5);
  EXPECT_NE(program.Digest(), before);
}

TEST(OptimizerDigestTest, WhatADerivedOptimizerKeepsOfItsOwnCounts) {
  const Maker make = MakerOf<DerivedAdam>(optim::AdamOptions(0.1));
  Program program(make);
  const uint64_t none = program.Digest();
  program.Train(1);
  const uint64_t before = program.Digest();
  EXPECT_NE(before, none);
  Program same(make);
  same.Train(1);
  EXPECT_EQ(same.Digest(), before);
  for (const Tensor& parameter : program.parameters) {
    EXPECT_FALSE(KeepsKnownState(*program.optimizer, parameter));
    auto& state =
        static_cast<OwnState&>(*program.optimizer->state()[KeyOf(parameter)]);
    state.tensor[1] += 0.5;
    EXPECT_NE(program.Digest(), before);
    state.tensor[1] -= 0.5;
    EXPECT_EQ(program.Digest(), before);
  }
}

}  // namespace
}  // namespace coxswain::torch::state_bytes_test
