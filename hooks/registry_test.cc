#include "hooks/registry.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string ErrorOf(const char* spec) {
  const auto hook = MakeHook(spec);
  EXPECT_EQ(hook.status().code(), absl::StatusCode::kInvalidArgument) << spec;
  // Both entrances say the same.
  EXPECT_EQ(CanonicalSpec(spec).status(), hook.status());
  return std::string(hook.status().message());
}

TEST(RegistryTest, EqualHooksHaveEqualCanonicalSpecs) {
  for (const auto& [spec, canonical] :
       {std::pair{"allreduce", "allreduce"},
        {" allreduce ( ) ", "allreduce"},
        {"fp16_compress", "fp16"},
        {"bf16_compress(order=divide_then_cast)", "bf16"},
        {"fp16(order=cast_then_divide)", "fp16(order=cast_then_divide)"},
        {"powersgd(rank=1,start_step=1000)", "powersgd"},
        {"powerSGD(seed=7, start_powerSGD_iter=10, "
         "matrix_approximation_rank=4)",
         "powersgd(rank=4,start_step=10,seed=7)"},
        {"power_sgd(use_error_feedback=False, warm_start=0, "
         "min_compression_rate=1.50, orthogonalization_epsilon=1e-08, "
         "start_step=0, random_seed=3)",
         "powersgd(start_step=0,min_compression_rate=1.5,error_feedback=false,"
         "warm_start=false,orthogonalization_epsilon=1e-08,seed=3)"},
        {"fp16( powersgd( rank = 4 ) )", "fp16(powersgd(rank=4))"},
        {"bf16_compress(fp16_compress(allreduce()))",
         "bf16(fp16(allreduce))"}}) {
    ASSERT_OK_AND_ASSIGN(const std::string text, CanonicalSpec(spec));
    EXPECT_EQ(text, canonical);
    ASSERT_OK_AND_ASSIGN(const auto hook, MakeHook(spec));
    EXPECT_EQ(hook->spec(), canonical);
    // The canonical spec is its own.
    ASSERT_OK_AND_ASSIGN(const std::string again, CanonicalSpec(canonical));
    EXPECT_EQ(again, canonical);
  }
}

TEST(RegistryTest, UnknownHookListsTheHooks) {
  EXPECT_THAT(ErrorOf("fp16(powresgd)"),
              AllOf(HasSubstr("character 6"), HasSubstr("'powresgd'"),
                    HasSubstr("allreduce, bf16, fp16, powersgd")));
}

TEST(RegistryTest, UnknownOptionListsTheValidOnes) {
  EXPECT_THAT(ErrorOf("powersgd(rnak=4)"),
              AllOf(HasSubstr("character 10"), HasSubstr("no option 'rnak'"),
                    HasSubstr("rank (1 to 1024)"),
                    HasSubstr("error_feedback (true or false)"),
                    HasSubstr("min_compression_rate (0 to 1e+06)")));
  EXPECT_THAT(ErrorOf("fp16(rank=1)"),
              HasSubstr("order (divide_then_cast or cast_then_divide)"));
  EXPECT_THAT(ErrorOf("allreduce(rank=1)"), HasSubstr("it has none"));
}

TEST(RegistryTest, OutOfRangeSaysTheRangeAndTheValue) {
  EXPECT_THAT(ErrorOf("powersgd(rank=0)"),
              HasSubstr("rank must be between 1 and 1024, got 0"));
  EXPECT_THAT(ErrorOf("powersgd(matrix_approximation_rank=1025)"),
              HasSubstr("rank must be between 1 and 1024, got 1025"));
  EXPECT_THAT(ErrorOf("powersgd(rank=2.5)"),
              HasSubstr("rank must be a whole number between 1 and 1024, got "
                        "2.5"));
  EXPECT_THAT(ErrorOf("powersgd(min_compression_rate=nan)"),
              HasSubstr("got nan"));
  EXPECT_THAT(ErrorOf("powersgd(orthogonalization_epsilon=-1)"),
              HasSubstr("between 0 and 1, got -1"));
  EXPECT_THAT(ErrorOf("powersgd(warm_start=maybe)"),
              HasSubstr("warm_start must be true or false, got maybe"));
  EXPECT_THAT(ErrorOf("bf16(order=never)"),
              HasSubstr("divide_then_cast or cast_then_divide, got never"));
}

TEST(RegistryTest, OptionGivenTwiceIsAnErrorUnderAnyName) {
  EXPECT_THAT(ErrorOf("powersgd(rank=2,matrix_approximation_rank=2)"),
              HasSubstr("twice, as 'rank' and as 'matrix_approximation_rank'"));
  EXPECT_THAT(ErrorOf("powersgd(seed=1,seed=1)"), HasSubstr("seed is given"));
}

TEST(RegistryTest, MemoryNeedsTwoPlainSteps) {
  EXPECT_THAT(ErrorOf("powersgd(start_step=1)"),
              HasSubstr("start_step of at least 2, got 1"));
  EXPECT_THAT(ErrorOf("powersgd(start_step=1,warm_start=false)"),
              HasSubstr("at least 2"));
  EXPECT_OK(MakeHook("powersgd(start_step=2)"));
  EXPECT_OK(
      MakeHook("powersgd(start_step=0,warm_start=false,error_feedback=false)"));
}

TEST(RegistryTest, InnerHooksOnlyWhereTheyBelong) {
  EXPECT_THAT(ErrorOf("powersgd(fp16)"), HasSubstr("takes no inner hook"));
  EXPECT_THAT(ErrorOf("powersgd(rank)"), HasSubstr("name=value"));
  EXPECT_THAT(ErrorOf("fp16(allreduce,bf16)"),
              HasSubstr("one inner hook, got 'allreduce' and 'bf16'"));
  EXPECT_THAT(ErrorOf("fp16(order=cast_then_divide,allreduce)"),
              HasSubstr("without an inner hook"));
  EXPECT_THAT(ErrorOf("fp16(powersgd(rank=0))"), HasSubstr("got 0"));
}

TEST(RegistryTest, ListSaysWhatTheParserTakes) {
  EXPECT_TRUE(std::is_sorted(
      ListHooks().begin(), ListHooks().end(),
      [](const auto& a, const auto& b) { return a.name < b.name; }));
  for (const HookDescription& hook : ListHooks()) {
    ASSERT_OK_AND_ASSIGN(const std::string plain, CanonicalSpec(hook.name));
    EXPECT_EQ(plain, hook.name);
    for (const std::string& alias : hook.aliases) {
      EXPECT_EQ(*CanonicalSpec(alias), hook.name);
    }
    for (const OptionDescription& option : hook.options) {
      EXPECT_FALSE(option.help.empty());
      EXPECT_EQ(*CanonicalSpec(hook.name + "(" + option.name + "=" +
                               option.DefaultText() + ")"),
                hook.name);
      EXPECT_THAT(HookHelp(), HasSubstr(option.name));
    }
  }
  EXPECT_THAT(HookHelp(), HasSubstr("  rank=1 (int, 1 to 1024): "));
}

}  // namespace
}  // namespace coxswain
