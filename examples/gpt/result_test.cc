#include "examples/gpt/result.h"

#include <cmath>
#include <fstream>
#include <string>

#include "base/status_matchers.h"
#include "examples/progress/step_event.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::examples::gpt {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TrainedRun RunOf(const std::string& mesh, int ranks, double loss,
                 const std::string& hook = "allreduce") {
  TrainedRun run;
  run.result.mesh = mesh;
  run.result.world_size = ranks;
  run.result.hook = hook;
  run.result.train_loss = loss;
  run.result.held_out_loss = 3;
  run.result.tp_bytes = 12345;
  run.curve.name = mesh;
  run.curve.points = {{1, 5.5}, {2, loss}};
  return run;
}

TEST(GptResultTest, RunsAreReadAsTheyWereWritten) {
  const std::string path = ::testing::TempDir() + "/events";
  Result result = RunOf("pp=2,tp=2", 4, 2.5).result;
  result.zero = 1;
  result.bubble = 0.25;
  StepEvent step;
  step.step = 7;
  step.loss = 4;
  step.unit = "tokens";
  std::ofstream(path) << LineOf(ToJson(step)) << LineOf(ToJson(result))
                      << LineOf(ToJson(result));
  ASSERT_OK_AND_ASSIGN(const std::vector<TrainedRun> runs, ReadRuns(path));
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(ToJson(runs[0].result), ToJson(result));
  ASSERT_EQ(runs[0].curve.points.size(), 1u);
  EXPECT_EQ(runs[0].curve.points[0].first, 7);
  EXPECT_TRUE(runs[1].curve.points.empty());
}

TEST(GptResultTest, FilesWithoutRunsAreErrors) {
  const std::string path = ::testing::TempDir() + "/none";
  EXPECT_THAT(ReadRuns(path), StatusIs(absl::StatusCode::kNotFound, _));
  std::ofstream(path) << R"({"event":"result"})"
                      << "\n";
  EXPECT_THAT(ReadRuns(path), StatusIs(absl::StatusCode::kDataLoss, _));
}

TEST(GptResultTest, TheTableHasBytesOfTheAxesThereAre) {
  const std::string table = TableOf({RunOf("dp=2,tp=2", 4, 2.5)});
  EXPECT_THAT(table, AllOf(HasSubstr("dp=2,tp=2"), HasSubstr("2.500000"),
                           HasSubstr("        -         -   12.3 kB  -\n")));
}

TEST(GptResultTest, LossesOfExactRunsAreCompared) {
  const TrainedRun one = RunOf("dp=1", 1, 2.5);
  ASSERT_OK_AND_ASSIGN(const double difference,
                       CompareLosses({one, RunOf("dp=4", 4, 2.5 + 1e-9),
                                      RunOf("tp=4", 4, 2.6, "bf16")}));
  EXPECT_NEAR(difference, 1e-9, 1e-12);
  EXPECT_THAT(
      CompareLosses({one, RunOf("tp=4", 4, 2.50001), RunOf("dp=4", 4, 2.5)}),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("tp=4"), Not(HasSubstr("dp=4")))));
}

TEST(GptResultTest, WhatCannotBeComparedDiffers) {
  const TrainedRun one = RunOf("dp=1", 1, 2.5);
  EXPECT_THAT(CompareLosses({one, RunOf("dp=4", 4, std::nan(""))}),
              StatusIs(absl::StatusCode::kFailedPrecondition, _));
  TrainedRun shorter = RunOf("dp=2", 2, 2.5);
  shorter.curve.points.pop_back();
  EXPECT_THAT(CompareLosses({one, shorter}),
              StatusIs(absl::StatusCode::kFailedPrecondition, _));
  EXPECT_THAT(CompareLosses({RunOf("dp=2", 2, 2.5)}),
              StatusIs(absl::StatusCode::kNotFound, _));
}

}  // namespace
}  // namespace coxswain::examples::gpt
