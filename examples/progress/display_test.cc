#include "examples/progress/display.h"

#include <string>

#include "examples/progress/step_event.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::examples {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(StepEventTest, IsFoundBehindTheLaunchersPrefix) {
  StepEvent step;
  step.step = 3;
  step.steps = 9;
  step.unit = "tokens";
  step.per_second = 1234;
  std::string line = "[0] " + LineOf(ToJson(step));
  EXPECT_EQ(KindOfEvent(&line), "step");
  const StepEvent read = StepFrom(nlohmann::json::parse(line));
  EXPECT_EQ(read.step, 3);
  EXPECT_EQ(read.unit, "tokens");
  EXPECT_EQ(read.per_second, 1234);
}

TEST(StepEventTest, OtherLinesAreNoEvents) {
  for (const char* text : {"", "{", "[]", "[0] {}", R"({"event":"joined"})",
                           R"({"event":1})", "\xff\xfe{"}) {
    std::string line = text;
    EXPECT_EQ(KindOfEvent(&line), "") << text;
    EXPECT_EQ(line, text);
  }
}

TEST(ProgressDisplayTest, DrawsOverItselfOnATerminal) {
  ProgressDisplay display(/*terminal=*/true);
  display.Begin("bf16");
  StepEvent event;
  event.step = 5;
  event.steps = 10;
  const std::string text = display.Show(event);
  EXPECT_THAT(text, StartsWith("\rbf16 [############............] step 5/10"));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  EXPECT_EQ(display.End(), "\n");
}

TEST(ProgressDisplayTest, PrintsTenPlainLinesElsewhere) {
  ProgressDisplay display(/*terminal=*/false);
  display.Begin("bf16");
  int lines = 0;
  for (int step = 1; step <= 1000; ++step) {
    StepEvent event;
    event.step = step;
    event.steps = 1000;
    const std::string text = display.Show(event);
    if (text.empty()) continue;
    ++lines;
    EXPECT_THAT(text, Not(HasSubstr("\r")));
    EXPECT_EQ(text.back(), '\n');
  }
  EXPECT_EQ(lines, 10);
  EXPECT_EQ(display.End(), "");
}

}  // namespace
}  // namespace coxswain::examples
