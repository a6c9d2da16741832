#include "train/trained_model.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using ::testing::HasSubstr;

TEST(DescribeTrainedTest, NamesWhatMakesNoSense) {
  double value = 0, gradient = 0;
  TrainedParameter parameter{"bias", {}, &value, &gradient, DType::kFloat64};
  EXPECT_OK(DescribeTrained({parameter}));
  const auto refused = [](const std::vector<TrainedParameter>& parameters,
                          const std::string& why) {
    EXPECT_THAT(DescribeTrained(parameters),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused({}, "no parameters");
  refused({parameter, parameter}, "two parameters are called \"bias\"");
  TrainedParameter wrong = parameter;
  wrong.gradient = nullptr;
  refused({wrong}, "\"bias\" has no gradient");
  wrong = parameter;
  wrong.gradient = wrong.value;
  refused({wrong}, "in the memory of its value");
  wrong = parameter;
  wrong.dtype = DType::kInt32;
  refused({wrong}, "int32");
  wrong = parameter;
  wrong.shape = {2, -1};
  refused({wrong}, "[2, -1]");
}

TEST(ProgramOfTest, WritesAndReadsTheValues) {
  std::vector<float> value = {1, 2, 3}, gradient(3);
  std::string learned = "momenta";
  const std::vector<TrainedParameter> parameters = {
      {"weight", {3}, value.data(), gradient.data()}};
  TrainedOptimizer optimizer;
  optimizer.save = [&]() -> absl::StatusOr<std::string> { return learned; };
  optimizer.load = [&](absl::string_view bytes) {
    learned = std::string(bytes);
    return absl::OkStatus();
  };
  const ProgramCheckpoint::Program program = ProgramOf(parameters, optimizer);
  std::string model;
  ASSERT_OK(program.save_model(&model));
  ASSERT_OK_AND_ASSIGN(const std::string bytes, program.save_optimizer());
  value = {0, 0, 0};
  learned = "nothing";
  ASSERT_OK(program.load_model(model));
  ASSERT_OK(program.load_optimizer(bytes));
  EXPECT_EQ(value, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(learned, "momenta");
  const std::vector<TrainedParameter> other = {
      {"weight", {1, 3}, value.data(), gradient.data()}};
  EXPECT_THAT(ProgramOf(other, optimizer).load_model(model),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("saved float32 [3], here float32 [1, 3]")));
}

}  // namespace
}  // namespace coxswain
