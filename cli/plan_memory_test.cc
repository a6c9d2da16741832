#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "cli/commands.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace coxswain::plan_memory_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kModel[] = R"({"dtype": "float32",
 "transformer": {"layers": 12, "hidden": 768, "heads": 12,
                 "vocabulary": 50257, "sequence": 1024, "batch": 2}}
)";

PlanMemoryOptions OptionsOf(const std::string& model, const std::string& mesh) {
  PlanMemoryOptions options;
  options.model = testing::TempDir() + "/model.json";
  std::ofstream(options.model) << model;
  options.mesh = mesh;
  return options;
}

TEST(PlanMemoryTest, ThePageShowsWhatIsPrinted) {
  std::ostringstream page;
  page << std::ifstream("docs/parallelism.md").rdbuf();
  PlanMemoryOptions options = OptionsOf(kModel, "pp=2,dp=4");
  options.zero = 1;
  options.accumulation = 8;
  ASSERT_OK_AND_ASSIGN(const std::string text, DescribeMemory(options));
  EXPECT_THAT(page.str(), HasSubstr(absl::StrCat("\n```\n", text, "```\n")))
      << text;
  EXPECT_THAT(page.str(), HasSubstr(absl::StrCat("\n", kModel)));
}

TEST(PlanMemoryTest, JsonHasBytes) {
  PlanMemoryOptions options =
      OptionsOf(R"({"layers": [{"parameters": 1000}]})", "shard=4");
  options.zero = 1;
  options.json = true;
  options.hook = "powersgd(rank=1)";
  ASSERT_OK_AND_ASSIGN(const std::string text, DescribeMemory(options));
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["sharers"], 4);
  const auto& rank = json["by_pp"][0];
  EXPECT_EQ(rank["parameters"], 4000);
  EXPECT_EQ(rank["buckets"], 4000);
  EXPECT_EQ(rank["optimizer"], 2000);
  EXPECT_EQ(rank["hook"], 8000);
  EXPECT_EQ(rank["host"], 0);
}

// Of twelve heads, five ranks have two or three.
TEST(PlanMemoryTest, ATensorGroupHasALineForEachShare) {
  PlanMemoryOptions options = OptionsOf(kModel, "pp=2,dp=1,tp=5");
  ASSERT_OK_AND_ASSIGN(const std::string text, DescribeMemory(options));
  EXPECT_THAT(text, HasSubstr("10 ranks, 1f1b, 1 of each pp and tp"));
  EXPECT_THAT(text, HasSubstr("\n  PP  TP "));
  EXPECT_THAT(text, HasSubstr("\n  0   0-1 "));
  EXPECT_THAT(text, HasSubstr("the largest  pp "));
  options.json = true;
  ASSERT_OK_AND_ASSIGN(const std::string lines, DescribeMemory(options));
  const auto json = nlohmann::json::parse(lines);
  int ranks = 0;
  int64_t all = 0;
  for (const auto& rank : json["by_pp"]) {
    ranks += rank["tp_ranks"].get<int>();
    all += rank["tp_ranks"].get<int64_t>() * rank["elements"].get<int64_t>();
  }
  EXPECT_EQ(ranks, 10);
  // All of it, and four more copies of what is whole on each rank: positions,
  // the norms, and the biases after a sum.
  const int64_t whole = 1024 * 768 + 12 * 6 * 768 + 2 * 768;
  const int64_t divided = 2 * int64_t{50257} * 768 +
                          12 * (12 * int64_t{768} * 768 + int64_t{7} * 768);
  EXPECT_EQ(all, divided + 5 * whole);
}

TEST(PlanMemoryTest, OffloadHasAColumnOfTheHost) {
  PlanMemoryOptions options =
      OptionsOf(R"({"layers": [{"parameters": 1000}]})", "shard=4");
  options.zero = 1;
  ASSERT_OK_AND_ASSIGN(const std::string without, DescribeMemory(options));
  EXPECT_THAT(without, Not(HasSubstr("HOST")));
  options.offload = true;
  ASSERT_OK_AND_ASSIGN(const std::string with, DescribeMemory(options));
  EXPECT_THAT(with, HasSubstr("HOST"));
  EXPECT_THAT(with, Not(HasSubstr("OPTIMIZER")));
}

TEST(PlanMemoryTest, ErrorsNameTheFileOrTheReason) {
  PlanMemoryOptions options = OptionsOf("{}", "");
  EXPECT_THAT(DescribeMemory(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith(options.model + ": the model's")));
  options.model = testing::TempDir() + "/none.json";
  EXPECT_THAT(DescribeMemory(options),
              StatusIs(absl::StatusCode::kNotFound,
                       StartsWith("cannot read " + options.model)));
  options = OptionsOf(kModel, "dp=2");
  options.zero = 3;
  EXPECT_THAT(DescribeMemory(options),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("parameters stay whole")));
  options = OptionsOf(R"({"layers": [{"parameters": 1000}]})", "tp=2");
  EXPECT_THAT(DescribeMemory(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("says how tp divides it")));
  options = OptionsOf(kModel, "pp=2,dp=4");
  options.zero = 2;
  options.accumulation = 8;
  EXPECT_THAT(
      DescribeMemory(options),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("send 7 x "), HasSubstr("--force-zero"))));
  options.force_zero = true;
  EXPECT_OK(DescribeMemory(options));
  options = OptionsOf(kModel, "dp=2");
  options.hook = "diloco";
  EXPECT_THAT(DescribeMemory(options),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("is not counted here")));
}

}  // namespace
}  // namespace coxswain::plan_memory_test
