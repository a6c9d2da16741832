#include "client/torch/elastic/module_catch_up.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/torch/elastic/catch_up_program_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::torch::module_catch_up_test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::TestWithParam;
using ::testing::ValuesIn;

void Copy(const std::vector<Span>& from,
          const std::vector<CatchUpTarget::Part>& to) {
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].bytes(), to[i].span.bytes());
    std::memcpy(to[i].span.data, from[i].data,
                static_cast<size_t>(from[i].bytes()));
  }
}

// A member, and a newcomer that takes its state and its steps without a
// network.
class ModuleCatchUpTest : public TestWithParam<OptimizerKind> {
 protected:
  // Gives the newcomer the member's state, as it is.
  void Begin() {
    ASSERT_OK(newcomer_.catch_up->Begin(
        member_.catch_up->DescribeStep(/*begins=*/true)));
    ASSERT_OK_AND_ASSIGN(const auto state, newcomer_.catch_up->State());
    Copy(member_.catch_up->StateToSend(), state);
    ExpectSame(newcomer_, member_);
  }

  // Both take a step, by rates that change after it.
  void Step(double gradient) {
    member_.SetGradients(gradient);
    StepWithGradients();
  }
  void StepWithGradients() {
    const std::vector<Span> averages = member_.catch_up->AveragesToSend();
    std::vector<std::string> copies;
    for (const Span& span : averages) {
      copies.emplace_back(static_cast<const char*>(span.data),
                          static_cast<size_t>(span.bytes()));
    }
    member_.optimizer->step();
    ChangeRate();
    const std::string rest = member_.catch_up->DescribeStep(/*begins=*/false);
    ASSERT_OK_AND_ASSIGN(const auto memory, newcomer_.catch_up->Averages(rest));
    ASSERT_THAT(memory, SizeIs(copies.size()));
    for (size_t i = 0; i < copies.size(); ++i) {
      std::memcpy(memory[i].span.data, copies[i].data(), copies[i].size());
    }
    ASSERT_OK(newcomer_.catch_up->Step(rest, /*applied=*/true));
    ExpectSame(newcomer_, member_);
  }
  // One that is skipped; the rates change all the same.
  void SkipStep() {
    ChangeRate();
    const std::string rest = member_.catch_up->DescribeStep(/*begins=*/false);
    ASSERT_OK(newcomer_.catch_up->Step(rest, /*applied=*/false));
    ExpectSame(newcomer_, member_);
  }
  void ChangeRate() { member_.SetRate(0.01 / static_cast<double>(++changes_)); }

  Program member_{GetParam(), 1};
  Program newcomer_{GetParam(), 2};
  int changes_ = 1;
};

INSTANTIATE_TEST_SUITE_P(Optimizers, ModuleCatchUpTest, ValuesIn(KnownKinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ModuleCatchUpTest, ANewcomerTakesTheSameSteps) {
  member_.SetGradients(0.5);
  member_.optimizer->step();
  Begin();
  const std::string begun = newcomer_.Bits();
  Step(0.25);
  SkipStep();
  Step(-2.0);
  SkipStep();
  SkipStep();
  Step(0.75);
  EXPECT_FALSE(newcomer_.Bits() == begun);
  newcomer_.catch_up->Forget();
  for (const Tensor& parameter : newcomer_.model->parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
}

TEST_P(ModuleCatchUpTest, TheFirstStepMakesTheState) {
  Begin();
  SkipStep();
  Step(0.25);
  Step(-1.5);
}

TEST_P(ModuleCatchUpTest, AParameterMayHaveNoAverage) {
  Begin();
  for (const double gradient : {0.5, -0.25}) {
    member_.SetGradients(gradient);
    member_.model->bias.mutable_grad() = Tensor();
    StepWithGradients();
  }
  Step(0.75);
}

TEST_P(ModuleCatchUpTest, ANewcomerGoesBackToWhatItHad) {
  newcomer_.SetGradients(0.5);
  newcomer_.optimizer->step();
  const std::string bits = newcomer_.Bits();
  const uint64_t digest = newcomer_.Digest();
  Begin();
  Step(0.25);
  EXPECT_FALSE(newcomer_.Bits() == bits);
  ASSERT_OK(newcomer_.catch_up->Undo());
  EXPECT_TRUE(newcomer_.Bits() == bits);
  EXPECT_EQ(newcomer_.Digest(), digest);
}

// A description that did not come as it was sent is not used. But what another
// program sends, or a member with a fault, may be anything.
class DescriptionTest : public ModuleCatchUpTest {
 protected:
  void SetUp() override {
    for (const Program* program : {&member_, &newcomer_}) {
      program->SetGradients(0.5);
      program->optimizer->step();
    }
    bits_ = newcomer_.Bits();
    digest_ = newcomer_.Digest();
    rest_ = member_.catch_up->DescribeStep(/*begins=*/true);
  }
  void ExpectAsBefore(const std::string& what) const {
    EXPECT_TRUE(newcomer_.Bits() == bits_) << what;
    EXPECT_EQ(newcomer_.Digest(), digest_) << what;
  }
  void ExpectRefused(const std::string& rest) {
    const std::string what =
        absl::StrCat(rest.size(), " bytes of ", rest_.size());
    EXPECT_THAT(
        newcomer_.catch_up->Begin(rest),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another optimizer")))
        << what;
    ExpectAsBefore(what);
  }

  std::string bits_;
  uint64_t digest_ = 0;
  std::string rest_;
};

INSTANTIATE_TEST_SUITE_P(Optimizers, DescriptionTest,
                         ValuesIn({AdamWWithLargest(), SgdWithMomentum()}),
                         [](const auto& info) { return info.param.name; });

TEST_P(DescriptionTest, OneThatIsTooShortOrTooLongIsRefused) {
  for (size_t size = 0; size < rest_.size(); ++size) {
    ExpectRefused(rest_.substr(0, size));
  }
  for (size_t more = 1; more <= 40; ++more) {
    ExpectRefused(rest_ + std::string(more, '\0'));
    ExpectRefused(rest_ + std::string(more, '\xff'));
  }
  ExpectRefused(rest_ + rest_);
  ASSERT_OK(newcomer_.catch_up->Begin(rest_));
}

TEST_P(DescriptionTest, AnyByteMayBeAnotherOne) {
  int refused = 0;
  for (size_t i = 0; i < rest_.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      std::string rest = rest_;
      rest[i] = static_cast<char>(rest[i] ^ (1 << bit));
      const std::string what = absl::StrCat("byte ", i, ", bit ", bit);
      // Rates and counts may be any.
      if (newcomer_.catch_up->Begin(rest).ok()) {
        EXPECT_OK(newcomer_.catch_up->Undo()) << what;
      } else {
        ++refused;
      }
      ExpectAsBefore(what);
    }
  }
  EXPECT_GT(refused, 0);
}

TEST_P(DescriptionTest, AStepByOneThatIsTooShortOrTooLongIsRefused) {
  ASSERT_OK(newcomer_.catch_up->Begin(rest_));
  const std::string bits = newcomer_.Bits();
  const uint64_t digest = newcomer_.Digest();
  const std::string rest = member_.catch_up->DescribeStep(/*begins=*/false);
  for (size_t size = 0; size < rest_.size(); ++size) {
    if (size == rest.size()) continue;  // it is a whole one
    const std::string part = rest_.substr(0, size);
    EXPECT_THAT(
        newcomer_.catch_up->Averages(part),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another optimizer")))
        << size;
    EXPECT_THAT(
        newcomer_.catch_up->Step(part, /*applied=*/true),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another optimizer")))
        << size;
  }
  EXPECT_THAT(
      newcomer_.catch_up->Step(rest + "?", /*applied=*/true),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another optimizer")));
  EXPECT_TRUE(newcomer_.Bits() == bits);
  EXPECT_EQ(newcomer_.Digest(), digest);
  // Another newcomer may begin with this step.
  EXPECT_OK(newcomer_.catch_up->Step(rest_, /*applied=*/false));
}

}  // namespace
}  // namespace coxswain::torch::module_catch_up_test
