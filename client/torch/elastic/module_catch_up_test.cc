#include "client/torch/elastic/module_catch_up.h"

#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "client/torch/state_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::torch::module_catch_up_test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::torch::Tensor;

// Two groups with rates of their own, and largest averages, which AdamW keeps
// for each parameter.
struct Program {
  explicit Program(double first) {
    const ::torch::NoGradGuard no_grad;
    for (Tensor& parameter : model->parameters()) parameter.fill_(first);
    std::vector<::torch::optim::OptimizerParamGroup> groups;
    for (const double rate : {0.1, 0.01}) {
      groups.emplace_back(
          std::vector<Tensor>{model->parameters()[groups.size()]},
          std::make_unique<::torch::optim::AdamWOptions>(
              ::torch::optim::AdamWOptions(rate).amsgrad(true)));
    }
    optimizer = std::make_unique<::torch::optim::AdamW>(groups);
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

  std::shared_ptr<::torch::nn::LinearImpl> model =
      std::make_shared<::torch::nn::LinearImpl>(5, 3);
  std::unique_ptr<::torch::optim::Optimizer> optimizer;
  std::unique_ptr<ModuleCatchUp> catch_up;
};

void Copy(const std::vector<Span>& from,
          const std::vector<CatchUpTarget::Part>& to) {
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].bytes(), to[i].span.bytes());
    std::memcpy(to[i].span.data, from[i].data,
                static_cast<size_t>(from[i].bytes()));
  }
}

// Gives the newcomer the member's state, as it is.
void Begin(Program& member, Program& newcomer) {
  ASSERT_OK(
      newcomer.catch_up->Begin(member.catch_up->DescribeStep(/*begins=*/true)));
  ASSERT_OK_AND_ASSIGN(const auto state, newcomer.catch_up->State());
  Copy(member.catch_up->StateToSend(), state);
}

// Both take a step, by rates that change after it.
void Step(Program& member, Program& newcomer, double gradient) {
  member.SetGradients(gradient);
  const std::vector<Span> averages = member.catch_up->AveragesToSend();
  std::vector<std::string> copies;
  for (const Span& span : averages) {
    copies.emplace_back(static_cast<const char*>(span.data),
                        static_cast<size_t>(span.bytes()));
  }
  member.optimizer->step();
  member.optimizer->param_groups()[1].options().set_lr(0.01 * gradient);
  const std::string rest = member.catch_up->DescribeStep(/*begins=*/false);
  ASSERT_OK_AND_ASSIGN(const auto memory, newcomer.catch_up->Averages(rest));
  ASSERT_THAT(memory, SizeIs(copies.size()));
  for (size_t i = 0; i < copies.size(); ++i) {
    std::memcpy(memory[i].span.data, copies[i].data(), copies[i].size());
  }
  ASSERT_OK(newcomer.catch_up->Step(rest, /*applied=*/true));
}

void ExpectSame(const Program& a, const Program& b) {
  EXPECT_TRUE(a.Bits() == b.Bits());
  EXPECT_EQ(a.Digest(), b.Digest());
}

TEST(ModuleCatchUpTest, ANewcomerTakesTheSameSteps) {
  Program member(1);
  Program newcomer(2);
  member.SetGradients(0.5);
  member.optimizer->step();
  Begin(member, newcomer);
  ExpectSame(newcomer, member);
  for (const double gradient : {0.25, -2.0, 0.75}) {
    Step(member, newcomer, gradient);
    ExpectSame(newcomer, member);
  }
  newcomer.catch_up->Forget();
  for (const Tensor& parameter : newcomer.model->parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
}

TEST(ModuleCatchUpTest, ANewcomerGoesBackToWhatItHad) {
  Program member(1);
  Program newcomer(2);
  newcomer.SetGradients(0.5);
  newcomer.optimizer->step();
  const std::string bits = newcomer.Bits();
  const uint64_t digest = newcomer.Digest();
  Begin(member, newcomer);
  Step(member, newcomer, 0.25);
  ExpectSame(newcomer, member);
  ASSERT_OK(newcomer.catch_up->Undo());
  EXPECT_TRUE(newcomer.Bits() == bits);
  EXPECT_EQ(newcomer.Digest(), digest);
}

TEST(ModuleCatchUpTest, WhatDescribesAnotherOptimizerIsRefused) {
  const Program newcomer(2);
  const std::string rest = newcomer.catch_up->DescribeStep(/*begins=*/true);
  for (size_t size = 0; size < rest.size(); ++size) {
    EXPECT_THAT(
        newcomer.catch_up->Begin(rest.substr(0, size)),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another optimizer")))
        << size;
  }
  EXPECT_OK(newcomer.catch_up->Begin(rest));
}

}  // namespace
}  // namespace coxswain::torch::module_catch_up_test
