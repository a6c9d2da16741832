// What Python saves is made by hand here: tests/python has the real thing.

#include "client/torch/python_optimizer.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/resume/tensor_bytes.h"
#include "client/torch/state_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::torch {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

constexpr char kSgd[] = "torch.optim.sgd.SGD";
constexpr char kAdam[] = "torch.optim.adam.Adam";

std::string Text(const std::string& text) {
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text;
}

struct Entry {
  TensorForm form;
  std::vector<double> elements;
};

Entry Of(const std::string& name, const std::string& form,
         std::vector<double> elements) {
  const size_t bytes = elements.size() * sizeof(double);
  return {{name, form, bytes}, std::move(elements)};
}

// A step of Python's is a number of 32 bits.
Entry Step(const std::string& name, float step) {
  Entry entry = Of(name, "Float []", {0});
  std::memcpy(entry.elements.data(), &step, sizeof(step));
  entry.form.bytes = sizeof(step);
  return entry;
}

std::string Saved(const std::string& kind, const std::vector<Entry>& entries) {
  std::vector<TensorForm> forms;
  for (const Entry& entry : entries) forms.push_back(entry.form);
  std::string tensors;
  SaveTensors(
      forms,
      [&](size_t i, char* to) {
        std::memcpy(to, entries[i].elements.data(), forms[i].bytes);
      },
      &tensors);
  return "CXPY0001" + Text(kind) + Text("[\"dict\",[]]") + tensors;
}

class PythonOptimizerTest : public testing::Test {
 protected:
  // Of two parameters, the second of which has had no gradient.
  const std::vector<::torch::Tensor> parameters_ = {
      ::torch::ones({2}, ::torch::kFloat64).requires_grad_(),
      ::torch::ones({3}, ::torch::kFloat64).requires_grad_()};
  ::torch::optim::SGD sgd_{parameters_,
                           ::torch::optim::SGDOptions(1).momentum(0.5)};
  ::torch::optim::Adam adam_{parameters_, ::torch::optim::AdamOptions(1)};
  const Entry rates_ = Of("1/learning_rates", "Double [1]", {0.25});
};

TEST_F(PythonOptimizerTest, GoesOnWithMomentaAndLearningRates) {
  const std::string bytes = Saved(
      kSgd, {Of("0/state/0/momentum_buffer", "Double [2]", {4, 8}), rates_});
  EXPECT_TRUE(IsOfPython(bytes));
  ASSERT_OK(LoadOptimizer(bytes, &sgd_));
  EXPECT_EQ(sgd_.param_groups()[0].options().get_lr(), 0.25);
  parameters_[0].mutable_grad() = ::torch::zeros({2}, ::torch::kFloat64);
  sgd_.step();
  // 1 - 0.25 * 0.5 * momentum.
  EXPECT_EQ(parameters_[0][0].item<double>(), 0.5);
  EXPECT_EQ(parameters_[0][1].item<double>(), 0);
}

TEST_F(PythonOptimizerTest, GoesOnWithTheStepsOfAdam) {
  ASSERT_OK(LoadOptimizer(
      Saved(kAdam, {Step("0/state/0/step", 7),
                    Of("2/state/0/exp_avg", "Double [2]", {1, 2}),
                    Of("3/state/0/exp_avg_sq", "Double [2]", {3, 4}), rates_}),
      &adam_));
  ASSERT_EQ(adam_.state().size(), 1u);
  const auto& state = static_cast<const ::torch::optim::AdamParamState&>(
      *adam_.state().begin()->second);
  EXPECT_EQ(state.step(), 7);
  EXPECT_EQ(state.exp_avg()[1].item<double>(), 2);
  EXPECT_EQ(state.exp_avg_sq()[1].item<double>(), 4);
}

TEST_F(PythonOptimizerTest, WhatDiffersIsNamed) {
  const auto refused = [&](const std::string& bytes,
                           ::torch::optim::Optimizer* optimizer,
                           const char* what) {
    EXPECT_THAT(
        LoadOptimizer(bytes, optimizer),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(what)));
  };
  const Entry momentum = Of("0/state/0/momentum_buffer", "Double [2]", {4, 8});
  refused(Saved(kSgd, {momentum, rates_}), &adam_, "is of torch.optim.sgd.SGD");
  ::torch::optim::RMSprop rmsprop(parameters_);
  refused(Saved("torch.optim.rmsprop.RMSprop", {rates_}), &rmsprop,
          "AdamW, Adam and SGD");
  refused(Saved(kSgd, {momentum}), &sgd_, "has 0 groups");
  refused(
      Saved(kSgd, {Of("0/state/0/momentum_buffer", "Double [1]", {4}), rates_}),
      &sgd_, "is Double [1], and Double [2] here");
  refused(
      Saved(kSgd, {Of("0/state/2/momentum_buffer", "Double [1]", {4}), rates_}),
      &sgd_, "no place for");
  refused(Saved(kSgd, {Of("0/state/0/other", "Double [2]", {4, 8}), rates_}),
          &sgd_, "has 'other'");
  refused(Saved(kAdam, {Step("0/state/0/step", 7), rates_}), &adam_,
          "has no 'exp_avg'");
  EXPECT_TRUE(sgd_.state().empty() && adam_.state().empty());
  EXPECT_EQ(sgd_.param_groups()[0].options().get_lr(), 1);
}

TEST_F(PythonOptimizerTest, WhatIsCutOffIsRefused) {
  const std::string bytes = Saved(
      kSgd, {Of("0/state/0/momentum_buffer", "Double [2]", {4, 8}), rates_});
  for (size_t size = 8; size < bytes.size(); ++size) {
    EXPECT_THAT(LoadOptimizer(bytes.substr(0, size), &sgd_),
                StatusIs(absl::StatusCode::kDataLoss, _))
        << size;
  }
}

}  // namespace
}  // namespace coxswain::torch
