#include "server/plan/pipeline_change.h"

#include <string>

#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/pipeline/action.h"

namespace coxswain::server::pipeline_change_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

schedule::Terms With(absl::string_view pipeline) {
  schedule::Terms terms;
  EXPECT_OK(terms.Set("pipeline", pipeline));
  return terms;
}

absl::Status Change(absl::string_view from, absl::string_view to,
                    int accumulation, int ranks = 4) {
  schedule::Plan plan;
  plan.terms = With(to);
  plan.accumulation_steps = accumulation;
  return CheckPipelineChange(With(from), plan, {2, ranks});
}

auto IsInvalid(const std::string& text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
}

TEST(PipelineChangeTest, WhatComesToItsEndIsAccepted) {
  for (const char* spec : {"gpipe", "1f1b", "zb_h1"}) {
    EXPECT_OK(Change("1f1b", spec, 8)) << spec;
    EXPECT_OK(Change(spec, "gpipe(order=fifo)", 1)) << spec;
  }
  EXPECT_OK(Change("interleaved(chunks=3)", "interleaved(chunks=3)", 5));
  EXPECT_OK(Change("1f1b", "1f1b", 3, 1));
}

TEST(PipelineChangeTest, StagesStayWhereTheyAre) {
  EXPECT_THAT(
      Change("interleaved(chunks=2)", "interleaved(chunks=4)", 8),
      IsInvalid("pipeline=interleaved(chunks=4) gives a rank 4 stages, and "
                "with pipeline=interleaved(chunks=2) it has 2: layers do not "
                "move while a job runs; start the job anew"));
  EXPECT_THAT(Change("1f1b", "interleaved", 8), IsInvalid("layers do not"));
  EXPECT_THAT(Change("none", "1f1b", 8), IsInvalid("it has 0"));
  EXPECT_THAT(Change("1f1b", "none", 8), IsInvalid("gives a rank 0 stages"));
}

TEST(PipelineChangeTest, BoundsAreThoseOfASchedule) {
  EXPECT_OK(Change("1f1b", "1f1b", 4096));
  EXPECT_THAT(
      Change("1f1b", "1f1b", pipeline::kMaxMicroBatches + 1),
      IsInvalid("the 4 ranks of a pipeline cannot run pipeline=1f1b with 65537 "
                "micro-batches: "));
  // Not too many micro-batches, and too many actions.
  EXPECT_THAT(Change("1f1b", "1f1b", 20000, 4096),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("passes"), HasSubstr("at most"))));
}

TEST(PipelineChangeTest, EveryWindowOfAGlobalBatchIsProved) {
  schedule::Plan plan;
  plan.terms = With("1f1b");
  plan.terms.on_resize = schedule::OnResize::kKeepGlobalBatch;
  plan.global_micro_batches = 2 * pipeline::kMaxMicroBatches + 1;
  EXPECT_THAT(CheckPipelineChange(With("1f1b"), plan, {2, 1}),
              IsInvalid("with 65537 micro-batches"));
}

TEST(PipelineChangeTest, LargeProofsAreMadeOneAtATime) {
  std::atomic<bool> taken = false;
  {
    const ProofTurn first(&taken);
    EXPECT_TRUE(first.ok());
    EXPECT_FALSE(ProofTurn(&taken).ok());
    EXPECT_FALSE(ProofTurn(&taken).ok()) << "it is not over with the second";
  }
  EXPECT_TRUE(ProofTurn(&taken).ok());
}

TEST(PipelineChangeTest, TheActionsToProveAreThoseOfTheLargestWindow) {
  schedule::Plan plan;
  plan.accumulation_steps = 4;
  EXPECT_EQ(ActionsToProve(plan, {2, 2}), 0);
  plan.terms = With("1f1b");
  EXPECT_EQ(ActionsToProve(plan, {2, 2}), 32);
  EXPECT_EQ(ActionsToProve(plan, {2, 0}), 0) << "the ranks are not known";
  plan.terms.on_resize = schedule::OnResize::kKeepGlobalBatch;
  plan.global_micro_batches = 9;
  EXPECT_EQ(ActionsToProve(plan, {2, 2}), 40);
}

TEST(PipelineChangeTest, JobsWithoutOneAreNotConcerned) {
  EXPECT_FALSE(ConcernsPipeline(With("none"), With("none")));
  EXPECT_TRUE(ConcernsPipeline(With("none"), With("1f1b")));
  EXPECT_TRUE(ConcernsPipeline(With("1f1b"), With("none")));
  EXPECT_OK(Change("none", "none", 1 << 20));
}

}  // namespace
}  // namespace coxswain::server::pipeline_change_test
