// Declared windows of a pipeline's stages, which vote together: clipping, and
// averages that are not finite.

#include <torch/types.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/reduce/planned_step.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"
#include "schedule/fake_step_gate.h"

namespace coxswain::torch::declared_window_stages_test {
namespace {

using testing::HasSubstr;

using Begins = std::vector<Accumulator::Begin>;

schedule::Plan Voting() {
  schedule::Terms terms;
  terms.commit_vote = true;
  return PlanOf(1, terms);
}

// Runs a function once per rank of two stages with two ranks each, numbered
// stage by stage; `rank` is that among the ranks of its stage.
void OnStages(const std::function<void(int stage, const TestRank& rank)>& run) {
  std::vector<std::thread> stages;
  for (int stage = 0; stage < 2; ++stage) {
    stages.emplace_back([&run, stage] {
      OnRanks(2, [&](const TestRank& rank) { run(stage, rank); });
    });
  }
  for (std::thread& thread : stages) thread.join();
}

class ClippingTest : public testing::TestWithParam<std::tuple<bool, int>> {};
INSTANTIATE_TEST_SUITE_P(ViewsAndSlices, ClippingTest,
                         testing::Values(std::make_tuple(false, 0),
                                         std::make_tuple(true, 0),
                                         std::make_tuple(true, 1)));

// Stage 0 has gradients of 3, stage 1 of 4: two elements each.
TEST_P(ClippingTest, TheNormIsThatOfAllStages) {
  const auto [view, zero] = GetParam();
  const schedule::Plan plan = Voting();
  schedule::FakeSchedule schedule(4, plan);
  OnStages([&, view = view, zero = zero](int stage, const TestRank& rank) {
    auto model = std::make_shared<Weights>(
        std::vector<std::string>{absl::StrCat("stage", stage)});
    auto options = Following(plan, schedule.gate(2 * stage + rank.index));
    options.gradient_as_bucket_view = view;
    options.zero = zero;
    options.reducer.max_norm = 1;
    options.reducer.counts_in_norm = rank.index == 0;
    auto ddp = Wrap(rank, model, options);
    const std::string name = absl::StrCat("stage", stage);
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK(ddp->DeclareWindow(Begins(1)));
      ASSERT_OK(ddp->BeginLastPass({0}));
      model->Use({name}, (3 + stage) * (1 + 0.5 * (1 - 2 * rank.index)))
          .backward();
      ASSERT_OK(ddp->EndLastPass());
      ASSERT_OK(ddp->Synchronize());
      if (zero == 0) {
        EXPECT_EQ(model->Gradient(name), 3 + stage);
      }
      ASSERT_OK(ddp->FinishStep());
      const double norm = std::sqrt(2.0) * 5;
      EXPECT_DOUBLE_EQ(ddp->reducer().report().gradient_norm, norm);
      if (zero == 0) {
        EXPECT_FLOAT_EQ(model->Gradient(name), (3 + stage) / norm);
      }
      ASSERT_OK(ddp->StepBy([&] {
        model->zero_grad();
        return absl::OkStatus();
      }));
    }
  });
}

TEST(StagesTest, AStageWhoseAveragesAreNotFiniteIsSkippedByAll) {
  const schedule::Plan plan = Voting();
  schedule::FakeSchedule schedule(4, plan);
  OnStages([&](int stage, const TestRank& rank) {
    auto model = std::make_shared<Weights>(std::vector<std::string>{"a"});
    auto options = Following(plan, schedule.gate(2 * stage + rank.index));
    options.skip_non_finite = true;
    options.reducer.counts_in_norm = rank.index == 0;
    auto ddp = Wrap(rank, model, options);
    for (int step = 0; step < 2; ++step) {
      ASSERT_OK(ddp->DeclareWindow(Begins(1)));
      const bool bad = step == 0 && stage == 1 && rank.index == 1;
      model->Use({"a"}, bad ? std::nan("") : 1).backward();
      ASSERT_OK(ddp->Synchronize());
      ASSERT_OK(ddp->FinishStep());
      EXPECT_EQ(ddp->skipped(), step == 0);
      if (step == 0) {
        EXPECT_THAT(
            ddp->decision().reason,
            AllOf(HasSubstr("rank 2: not finite: the averages of \"a\""),
                  HasSubstr("rank 3: not finite: the gradient of \"a\" "
                            "on rank 1")));
      }
      model->zero_grad();
    }
  });
}

class OwnHook : public AverageHook {
 public:
  GradientReach reach() const override { return GradientReach::kOwn; }
};

TEST(StagesTest, WhatNeedsTheVotesOfAllStages) {
  AverageHook hook;
  ReducerOptions reducer;
  reducer.counts_in_norm = true;
  const auto check = [&](const schedule::Plan& plan, const Hook& of,
                         bool skip_non_finite) {
    schedule::FakeSchedule schedule(1, plan);
    reducer.gate = schedule.gate(0);
    return CheckTermsFit(plan, reducer, skip_non_finite, of, nullptr);
  };
  EXPECT_THAT(check(PlanOf(1), hook, /*skip_non_finite=*/true),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("each stage sees the averages of its own")));
  EXPECT_OK(check(Voting(), hook, /*skip_non_finite=*/true));
  reducer.max_norm = 1;
  EXPECT_OK(check(Voting(), hook, /*skip_non_finite=*/false));
  EXPECT_THAT(check(Voting(), OwnHook(), /*skip_non_finite=*/false),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("max_norm over the stages")));
}

}  // namespace
}  // namespace coxswain::torch::declared_window_stages_test
