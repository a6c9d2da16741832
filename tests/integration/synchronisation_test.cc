// When gradients are exchanged and when they are only summed up: what
// Accelerate's users rely on, shown with every hook, on one, two and four
// ranks, with and without gradients that live in their buckets. Each hook meets
// each number of ranks and both kinds of gradients; all combinations of them if
// COXSWAIN_EVERY_SETTING is set.
//
// What is compared with what: synchronisation_reference.h.

#include <ATen/Parallel.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/accumulate/accumulator.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "tests/hooks/every_hook.h"
#include "tests/integration/synchronisation_net.h"
#include "tests/integration/synchronisation_rank.h"
#include "tests/integration/synchronisation_reference.h"
#include "tests/support/environment.h"

namespace coxswain::synchronisation_test {
namespace {

using testing::HasSubstr;
using ::torch::Tensor;

// Local SGD in a rhythm that a few steps show.
std::vector<AnyHook> LocalHooks() {
  std::vector<AnyHook> hooks(6);
  hooks[0].name = "PostLocalSgd";
  hooks[0].spec = "post_local_sgd(start_step=2,period=3)";
  hooks[1].name = "PostLocalSgdOfPairs";
  hooks[1].spec = "post_local_sgd(start_step=2,period=3,subgroup=2)";
  hooks[2].name = "HierarchicalSgd";
  hooks[2].spec = "hierarchical_sgd(start_step=2,levels=1x2+4xall)";
  hooks[3].name = "DiLoCo";
  hooks[3].spec = "diloco(start_step=2,inner_steps=2)";
  hooks[4].name = "Fp16OfPostLocalSgd";
  hooks[4].spec = "fp16(post_local_sgd(start_step=2,period=3))";
  hooks[5].name = "StatsOfDiLoCo";
  hooks[5].spec = "stats(diloco(start_step=2,inner_steps=2),every=1000000)";
  for (AnyHook& hook : hooks) {
    hook.start_step = 2;
    hook.ranks_differ = true;
  }
  return hooks;
}

bool NeedsAverager(const std::string& spec) {
  const auto averager = MakeAverager(spec);
  EXPECT_OK(averager);
  return *averager != nullptr;
}

std::vector<Setting> Settings() {
  std::vector<AnyHook> hooks = LocalHooks();
  for (AnyHook& hook : EveryHook()) {
    if (!NeedsAverager(hook.spec)) hooks.push_back(std::move(hook));
  }
  std::vector<Setting> settings;
  bool view = false;
  for (const AnyHook& hook : hooks) {
    for (const int size : {1, 2, 4}) {
      settings.push_back({hook, size, view});
      view = !view;
      if (EverySetting()) settings.push_back({hook, size, view});
    }
  }
  return settings;
}

class SynchronisationTest : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  // Trains with this program, and compares with the plan.
  void Train(int accumulation_steps, const std::vector<PlannedPass>& plan,
             const std::function<void(TestRank&)>& program) {
    const auto ranks = RunJob(GetParam(), accumulation_steps, program);
    if (HasFatalFailure()) return;
    Reference(GetParam(), ranks[0]->start()).Check(plan, ranks);
  }
};

INSTANTIATE_TEST_SUITE_P(EveryHook, SynchronisationTest,
                         testing::ValuesIn(Settings()),
                         [](const testing::TestParamInfo<Setting>& info) {
                           return absl::StrCat(
                               info.param.hook.name, "On", info.param.size,
                               info.param.view ? "WithViews" : "WithCopies");
                         });

// Groups 1 and 2: no_sync, which with one rank changes nothing, and with
// several keeps gradients apart until the pass after it. They are never
// cleared: an average, too, is a part of the next sum.
TEST_P(SynchronisationTest, WithinNoSyncGradientsStayApart) {
  std::vector<PlannedPass> plan;
  for (int batch = 0; batch < 2 * kBatches; ++batch) {
    PlannedPass pass;
    pass.batches = {batch};
    pass.exchange = batch % 2 == 1;
    plan.push_back(pass);
  }
  Train(1, plan, [](TestRank& rank) {
    for (int batch = 0; batch < 2 * kBatches; ++batch) {
      const Tensor loss = rank.Loss(rank.NextBatch());
      if (batch % 2 == 1) {
        rank.Backward(loss, /*exchanges=*/true);
        // The averager counts a step, of which nothing was applied.
        ASSERT_OK(rank.ddp().AfterOptimizerStep());
        continue;
      }
      const auto no_sync = rank.ddp().NoSync();
      rank.Backward(loss, /*exchanges=*/false);
    }
  });
}

// Group 3: the forwards of several batches run before the first backward. What
// exchanges is decided by the passes' declarations, not by when forward ran.
constexpr int kForwards = 2;
constexpr int kRounds = 2 * kBatches / kForwards;

std::vector<Tensor> Losses(TestRank& rank) {
  std::vector<Tensor> losses;
  for (int i = 0; i < kForwards; ++i) {
    losses.push_back(rank.Loss(rank.NextBatch()));
  }
  return losses;
}

TEST_P(SynchronisationTest, SeveralForwardsThenTheirMicroBatches) {
  Train(kForwards, Windows(std::vector<int>(kRounds, kForwards)),
        [](TestRank& rank) {
          for (int round = 0; round < kRounds; ++round) {
            for (const Tensor& loss : Losses(rank)) {
              const MicroBatch micro = rank.ddp().Accumulate();
              rank.Backward(loss / micro.window, micro.sync);
            }
            rank.Step();
          }
        });
}

// As with Accelerate's no_sync around the forwards and trigger_sync_in_backward
// around the last pass.
TEST_P(SynchronisationTest, SeveralForwardsThenTheLastPassIsOutsideNoSync) {
  std::vector<PlannedPass> plan = Windows(std::vector<int>(kRounds, kForwards));
  for (PlannedPass& pass : plan) pass.divisor = 1;
  Train(1, plan, [](TestRank& rank) {
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<Tensor> losses = Losses(rank);
      {
        const auto no_sync = rank.ddp().NoSync();
        for (int i = 0; i + 1 < kForwards; ++i) {
          rank.Backward(losses[static_cast<size_t>(i)], /*exchanges=*/false);
        }
      }
      rank.Backward(losses.back(), /*exchanges=*/true);
      rank.Step();
    }
  });
}

TEST_P(SynchronisationTest, SeveralForwardsThenOneBackward) {
  std::vector<PlannedPass> plan(kRounds);
  for (int round = 0; round < kRounds; ++round) {
    PlannedPass& pass = plan[static_cast<size_t>(round)];
    for (int i = 0; i < kForwards; ++i) {
      pass.batches.push_back(round * kForwards + i);
    }
    pass.divisor = kForwards;
    pass.step = true;
  }
  Train(1, plan, [](TestRank& rank) {
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<Tensor> losses = Losses(rank);
      Tensor sum = losses[0];
      for (size_t i = 1; i < losses.size(); ++i) sum = sum + losses[i];
      rank.Backward(sum / kForwards, /*exchanges=*/true);
      rank.Step();
    }
  });
}

// Group 4: accumulation. The windows end where the data does, and the losses
// of a shorter one have its own divisor.
constexpr int kWindow = 3;
const std::vector<int> kTwoEpochs = {3, 2, 3, 2};

void TrainTwoEpochs(TestRank& rank) {
  for (int epoch = 0; epoch < 2; ++epoch, rank.sampler().NextEpoch()) {
    ASSERT_OK(
        rank.ddp().accumulator().BeginEpoch(rank.sampler().batches_left()));
    while (const auto batch = rank.sampler().NextBatch()) {
      const MicroBatch micro = rank.ddp().Accumulate();
      rank.Backward(rank.Loss(*batch) / micro.window, micro.sync);
      if (micro.sync) rank.Step();
    }
  }
}

TEST_P(SynchronisationTest, AccumulationOverDataOfKnownLength) {
  Train(kWindow, Windows(kTwoEpochs), TrainTwoEpochs);
}

// A window whose end came too early for its divisor: its passes, of which none
// exchanges, and then an exchange of their rescaled sum.
void CutShort(std::vector<PlannedPass>& plan, int from) {
  const int micros = static_cast<int>(plan.size()) - from;
  for (size_t i = static_cast<size_t>(from); i < plan.size(); ++i) {
    plan[i].divisor = kWindow;
    plan[i].exchange = plan[i].step = false;
  }
  PlannedPass flush;
  flush.rescale = double{kWindow} / micros;
  flush.step = true;
  plan.push_back(flush);
}

// Takes the step of a window that was cut short.
void FlushAndStep(TestRank& rank) {
  rank.Record(/*exchanges=*/true, [&] {
    const absl::StatusOr<bool> flushed = rank.ddp().Flush();
    EXPECT_TRUE(flushed.ok() && *flushed);
    return flushed.status();
  });
  rank.Step();
}

TEST_P(SynchronisationTest, AccumulationOverDataOfUnknownLength) {
  std::vector<PlannedPass> plan;
  for (const int first_batch : {0, kBatches}) {
    for (const PlannedPass& pass : Windows({3, 2}, first_batch)) {
      plan.push_back(pass);
    }
    CutShort(plan, static_cast<int>(plan.size()) - 2);
  }
  Train(kWindow, plan, [](TestRank& rank) {
    for (int epoch = 0; epoch < 2; ++epoch, rank.sampler().NextEpoch()) {
      while (const auto batch = rank.sampler().NextBatch()) {
        const MicroBatch micro = rank.ddp().Accumulate();
        EXPECT_EQ(micro.window, kWindow);
        rank.Backward(rank.Loss(*batch) / micro.window, micro.sync);
        if (micro.sync) rank.Step();
      }
      FlushAndStep(rank);
      ASSERT_OK_AND_ASSIGN(const bool again, rank.ddp().Flush());
      EXPECT_FALSE(again);
    }
  });
}

// Accelerate's sync_each_batch: every micro-batch exchanges, and only the
// optimizer waits for the window's end. The average so far is equal on all
// ranks, so averaging it again with the next gradients on top changes nothing:
// a hook that loses nothing gives the same as one exchange at the end. A lossy
// one compresses the whole sum in each micro-batch, and each counts as a step
// of the hook (start_step comes the sooner); what an exchange left out is sent
// with the window's next one.
//
// With local SGD only the window's last micro-batch exchanges: the hook and the
// averager would otherwise count apart, which Backward refuses.
TEST_P(SynchronisationTest, EveryMicroBatchExchangesAndTheOptimizerWaits) {
  const bool local = NeedsAverager(GetParam().hook.spec);
  std::vector<PlannedPass> plan = Windows(kTwoEpochs);
  for (PlannedPass& pass : plan) {
    if (!local) pass.exchange = pass.commit = true;
  }
  Train(1, plan, [local](TestRank& rank) {
    ASSERT_OK_AND_ASSIGN(Accumulator windows, Accumulator::Create(kWindow));
    for (int epoch = 0; epoch < 2; ++epoch, rank.sampler().NextEpoch()) {
      ASSERT_OK(windows.BeginEpoch(rank.sampler().batches_left()));
      while (const auto batch = rank.sampler().NextBatch()) {
        ASSERT_OK_AND_ASSIGN(const MicroBatch micro, windows.BeginMicroBatch());
        const Tensor loss = rank.Loss(*batch) / micro.window;
        std::unique_ptr<torch::NoSyncScope> scope;
        if (local && !micro.sync) {
          scope.reset(new torch::NoSyncScope(rank.ddp().NoSync()));
        }
        rank.Backward(loss, /*exchanges=*/scope == nullptr);
        if (micro.sync) rank.Step();
      }
    }
  });
}

// Group 5: an optimizer with momentum and a schedule of its rate, which both
// step where the micro-batch's `sync` is true and nowhere else.
TEST_P(SynchronisationTest, OptimizerAndScheduleStepOncePerWindow) {
  Train(kWindow, Windows(kTwoEpochs), [](TestRank& rank) {
    Accumulator& accumulator = rank.ddp().accumulator();
    int64_t steps = 0;
    for (int epoch = 0; epoch < 2; ++epoch, rank.sampler().NextEpoch()) {
      ASSERT_OK(accumulator.BeginEpoch(rank.sampler().batches_left()));
      while (const auto batch = rank.sampler().NextBatch()) {
        const MicroBatch micro = rank.ddp().Accumulate();
        EXPECT_EQ(micro.step, steps);
        rank.Backward(rank.Loss(*batch) / micro.window, micro.sync);
        if (!micro.sync) {
          EXPECT_THAT(accumulator.CheckOptimizerStep(),
                      StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("have not been exchanged")));
          continue;
        }
        ASSERT_OK(accumulator.CheckOptimizerStep());
        rank.Step();
        ++steps;
      }
    }
    EXPECT_EQ(steps, static_cast<int64_t>(kTwoEpochs.size()));
    EXPECT_LT(rank.optimizer().rate(), kLearningRate);
  });
}

// Group 6: loops that are left early, and loops within loops. An evaluation
// counts on a stream of its own.

constexpr int kEvaluation = 4;

// Evaluates on `batches` of kEvaluation, and leaves the loop then.
void Evaluate(TestRank& rank, int batches) {
  ::torch::NoGradGuard no_grad;
  Accumulator& accumulator = rank.ddp().accumulator();
  ShardedSampler sampler = MakeSampler(0, 1);
  ASSERT_OK(accumulator.BeginEpoch(kEvaluation, "eval"));
  for (int i = 0; i < batches; ++i) {
    ASSERT_OK_AND_ASSIGN(const MicroBatch micro,
                         accumulator.BeginMicroBatch("eval"));
    EXPECT_EQ(micro.micro, i % kWindow);
    EXPECT_GT(rank.Loss(*sampler.NextBatch()).item<double>(), 0);
  }
  EXPECT_EQ(accumulator.EndOfData("eval").micro_batches,
            batches == kEvaluation ? 0 : batches % kWindow);
}

TEST_P(SynchronisationTest, AnEvaluationWithinAWindowChangesNothing) {
  Train(kWindow, Windows(kTwoEpochs), [](TestRank& rank) {
    for (int epoch = 0; epoch < 2; ++epoch, rank.sampler().NextEpoch()) {
      ASSERT_OK(
          rank.ddp().accumulator().BeginEpoch(rank.sampler().batches_left()));
      while (const auto batch = rank.sampler().NextBatch()) {
        const MicroBatch micro = rank.ddp().Accumulate();
        rank.Backward(rank.Loss(*batch) / micro.window, micro.sync);
        const Tensors before = CopyOfGradients(rank.net());
        // Whole evaluations, and some that are left in mid-window.
        Evaluate(rank, micro.micro == 0 ? kEvaluation : micro.micro);
        EXPECT_TRUE(SameBits(CopyOfGradients(rank.net()), before));
        if (micro.sync) rank.Step();
      }
    }
  });
}

// Trains on the first two of an epoch's batches, which do not fill a window.
constexpr int kBreak = 2;

void TrainAndBreak(TestRank& rank) {
  ASSERT_OK(rank.ddp().accumulator().BeginEpoch(rank.sampler().batches_left()));
  for (int i = 0; i < kBreak; ++i) {
    const MicroBatch micro = rank.ddp().Accumulate();
    rank.Backward(rank.Loss(rank.NextBatch()) / micro.window, micro.sync);
    if (micro.sync) rank.Step();
  }
  rank.sampler().NextEpoch();
  Evaluate(rank, kBreak);
}

void Append(std::vector<PlannedPass>& plan,
            const std::vector<PlannedPass>& more) {
  plan.insert(plan.end(), more.begin(), more.end());
}

TEST_P(SynchronisationTest, WhatALoopLeftOverIsFlushed) {
  std::vector<PlannedPass> plan = Windows({kBreak});
  CutShort(plan, 0);
  Append(plan, Windows(kTwoEpochs, kBatches));
  Train(kWindow, plan, [](TestRank& rank) {
    TrainAndBreak(rank);
    Accumulator& accumulator = rank.ddp().accumulator();
    for (const absl::Status& status :
         {accumulator.BeginEpoch(kBatches), accumulator.Position().status(),
          accumulator.CheckOptimizerStep()}) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("2 of 3")));
    }
    FlushAndStep(rank);
    TrainTwoEpochs(rank);
  });
}

TEST_P(SynchronisationTest, WhatALoopLeftOverIsDropped) {
  std::vector<PlannedPass> plan = Windows({kBreak});
  CutShort(plan, 0);
  plan.pop_back();
  plan.back().drop = true;
  Append(plan, Windows(kTwoEpochs, kBatches));
  Train(kWindow, plan, [](TestRank& rank) {
    TrainAndBreak(rank);
    EXPECT_EQ(rank.ddp().accumulator().EndOfData().micro_batches, kBreak);
    rank.net().zero_grad();
    TrainTwoEpochs(rank);
  });
}

// Where no length is declared, a window goes on in the next loop.
TEST_P(SynchronisationTest, WhatALoopLeftOverIsCarriedOn) {
  std::vector<PlannedPass> plan = Windows({3, 3, 3, 3});
  for (size_t i = kBreak; i < plan.size(); ++i) {
    plan[i].batches[0] += kBatches - kBreak;
  }
  Train(kWindow, plan, [](TestRank& rank) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int i = 0; epoch > 0 || i < kBreak; ++i) {
        const auto batch = rank.sampler().NextBatch();
        if (!batch) break;
        const MicroBatch micro = rank.ddp().Accumulate();
        rank.Backward(rank.Loss(*batch) / micro.window, micro.sync);
        if (micro.sync) rank.Step();
      }
      rank.sampler().NextEpoch();
      Evaluate(rank, kBreak);
    }
    ASSERT_OK_AND_ASSIGN(const bool left_over, rank.ddp().Flush());
    EXPECT_FALSE(left_over);
  });
}

}  // namespace
}  // namespace coxswain::synchronisation_test
