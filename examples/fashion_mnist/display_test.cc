#include "examples/fashion_mnist/display.h"

#include <nlohmann/json.hpp>

#include "base/status_matchers.h"
#include "examples/fashion_mnist/events.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::examples::display_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ResultEvent SomeResult() {
  ResultEvent result;
  result.hook = "powersgd(rank=2)";
  result.world_size = 2;
  result.steps = 100;
  result.compressed_steps = 80;
  result.test_accuracy = 0.875;
  result.bytes_sent_per_step = 16000;
  result.compression_ratio = 50;
  result.images_per_second = 1234;
  result.wall_seconds = 5.5;
  return result;
}

TEST(EventsTest, SurviveTheTripThroughALine) {
  ASSERT_OK_AND_ASSIGN(const Event event, ParseEvent(ToJsonLine(SomeResult())));
  const ResultEvent& result = std::get<ResultEvent>(event);
  EXPECT_EQ(result.hook, "powersgd(rank=2)");
  EXPECT_EQ(result.compressed_steps, 80);
  EXPECT_EQ(result.test_accuracy, 0.875);

  StepEvent step;
  step.step = 3;
  step.steps = 9;
  ASSERT_OK_AND_ASSIGN(const Event other, ParseEvent(ToJsonLine(step)));
  EXPECT_EQ(std::get<StepEvent>(other).steps, 9);
}

TEST(EventsTest, NonsenseIsAnError) {
  for (const char* line : {"", "{", "[]", "{\"event\":\"step\"}",
                           "{\"event\":\"x\"}", "\xff\xfe"}) {
    EXPECT_THAT(ParseEvent(line),
                StatusIs(absl::StatusCode::kInvalidArgument, Not(IsEmpty())))
        << line;
  }
}

TEST(ResultTest, TableShowsARowAndNoWarning) {
  const std::string table = ResultTable({SomeResult()});
  EXPECT_THAT(table, HasSubstr("powersgd(rank=2)"));
  EXPECT_THAT(table, HasSubstr("87.50%"));
  EXPECT_THAT(table, HasSubstr("16.0 kB"));
  EXPECT_THAT(table, HasSubstr("50.0x"));
  EXPECT_THAT(table, Not(HasSubstr("warning")));
}

TEST(ResultTest, NoCompressedStepIsAWarning) {
  ResultEvent result = SomeResult();
  result.compressed_steps = 0;
  EXPECT_THAT(ResultTable({result}),
              HasSubstr("compressed none of its 100 steps"));
}

TEST(ResultTest, JsonHasWhatTheTableHas) {
  const auto json = nlohmann::json::parse(ResultJson(2, {SomeResult()}));
  EXPECT_EQ(json["world_size"], 2);
  const auto& run = json["runs"][0];
  for (const char* key :
       {"hook", "steps", "test_accuracy", "bytes_sent_per_step",
        "compression_ratio", "images_per_second", "wall_seconds",
        "compressed_steps", "wire_bytes_per_step"}) {
    EXPECT_TRUE(run.contains(key)) << key;
  }
  EXPECT_FALSE(run.contains("event"));
}

}  // namespace
}  // namespace coxswain::examples::display_test
