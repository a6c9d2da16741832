// The state that a member sends to newcomers, in the member's memory.

#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "client/torch/elastic/module_catch_up.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::torch::sent_state_test {
namespace {

using ::torch::Tensor;

TEST(SentStateTest, StaysWhateverBecomesOfTheTensors) {
  const auto model = std::make_shared<::torch::nn::LinearImpl>(5, 3);
  ::torch::optim::Adam optimizer(model->parameters(), 0.1);
  for (const Tensor& parameter : model->parameters()) {
    Tensor(parameter).mutable_grad() =
        ::torch::full_like(parameter.detach(), 0.5);
  }
  optimizer.step();
  ASSERT_OK_AND_ASSIGN(const auto member,
                       ModuleCatchUp::Create(*model, &optimizer));
  const std::vector<Span> state = member->StateToSend();
  ASSERT_EQ(state.size(), 6) << "two parameters, and two averages of each";
  const auto bits_of = [&state] {
    std::string bits;
    for (const Span& span : state) {
      bits.append(static_cast<const char*>(span.data),
                  static_cast<size_t>(span.bytes()));
    }
    return bits;
  };
  const std::string before = bits_of();
  optimizer.state().clear();
  std::vector<Tensor> others;
  for (const Tensor& parameter : model->parameters()) {
    Tensor(parameter).set_data(::torch::full_like(parameter.detach(), 7));
    // In memory that was given back, if any was.
    for (int i = 0; i < 16; ++i) {
      others.push_back(::torch::full_like(parameter.detach(), 8));
    }
  }
  EXPECT_TRUE(bits_of() == before);
}

}  // namespace
}  // namespace coxswain::torch::sent_state_test
