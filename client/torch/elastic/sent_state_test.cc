// The state that a member sends to newcomers, in the member's memory.

#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>
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

using ::testing::HasSubstr;
using ::torch::Tensor;

// What a class that is derived from a known optimizer keeps in place of its
// state.
struct OwnState
    : public ::torch::optim::OptimizerCloneableParamState<OwnState> {
  void serialize(::torch::serialize::OutputArchive& archive) const override {
    archive.write("own", tensor);
  }
  Tensor tensor = ::torch::ones({2});
};

class DerivedAdam : public ::torch::optim::Adam {
 public:
  using Adam::Adam;
  Tensor step(LossClosure) override {
    for (const Tensor& parameter : param_groups()[0].params()) {
      state()[c10::guts::to_string(parameter.unsafeGetTensorImpl())] =
          std::make_unique<OwnState>();
    }
    return Tensor();
  }
};

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

TEST(SentStateTest, IsReleasedOnceItIsForgotten) {
  const auto model = std::make_shared<::torch::nn::LinearImpl>(5, 3);
  ::torch::optim::Adam optimizer(model->parameters(), 0.1);
  ASSERT_OK_AND_ASSIGN(const auto member,
                       ModuleCatchUp::Create(*model, &optimizer));
  const Tensor average = ::torch::ones_like(model->weight.detach());
  model->weight.mutable_grad() = average;
  const auto state_uses = [&] { return model->weight.storage().use_count(); };
  const auto average_uses = [&] { return average.storage().use_count(); };
  const auto state = state_uses();
  const auto averages = average.use_count() + average_uses();
  member->StateToSend();
  EXPECT_GT(state_uses(), state);
  member->ForgetSent();
  EXPECT_EQ(state_uses(), state);
  member->AveragesToSend();
  EXPECT_GT(average.use_count() + average_uses(), averages);
  member->ForgetAverages();
  EXPECT_EQ(average.use_count() + average_uses(), averages);
}

TEST(SentStateTest, IsNoneWhereTheOptimizerKeepsWhatIsNotKnown) {
  const auto model = std::make_shared<::torch::nn::LinearImpl>(5, 3);
  DerivedAdam optimizer(model->parameters(), ::torch::optim::AdamOptions(0.1));
  // It keeps nothing yet.
  ASSERT_OK_AND_ASSIGN(const auto member,
                       ModuleCatchUp::Create(*model, &optimizer));
  EXPECT_EQ(member->StateToSend().size(), 2);
  member->DescribeStep(/*begins=*/true);
  optimizer.step(nullptr);
  EXPECT_THROW(member->StateToSend(), c10::Error);
  EXPECT_THROW(member->DescribeStep(/*begins=*/true), c10::Error);
  EXPECT_THAT(member->State(), StatusIs(absl::StatusCode::kInternal,
                                        HasSubstr("a type of its own")));
  EXPECT_THAT(ModuleCatchUp::Create(*model, &optimizer),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("a type of its own")));
}

}  // namespace
}  // namespace coxswain::torch::sent_state_test
