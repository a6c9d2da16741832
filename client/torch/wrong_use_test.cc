// What is refused at the call: passes, forwards and optimizer steps in the
// wrong place, and options that do not go together.

#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"
#include "schedule/fake_step_gate.h"

namespace coxswain::torch::wrong_use_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using ::torch::Tensor;

using Names = std::vector<std::string>;

auto Refused(const std::string& what) {
  return StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(what));
}

class WrongUseTest : public testing::Test {
 protected:
  void Wrap(const DistributedDataParallelOptions& options) {
    TestRank rank;
    rank.communicator = &communicator_;
    ddp_ = torch::Wrap(rank, model_, options);
  }
  Tensor Loss() { return model_->Use({"a"}, 2); }
  absl::Status Run() {
    const MicroBatch micro = ddp_->Accumulate();
    return ddp_->Backward(Loss() * micro.loss_scale);
  }

  // The first error stays, whatever comes next.
  void ExpectOver(const std::string& what) {
    ddp_->Accumulate();
    EXPECT_THAT(ddp_->Backward(Loss()), Refused(what));
    EXPECT_THAT(ddp_->Synchronize(), Refused(what));
    EXPECT_THAT(ddp_->FinishStep(), Refused(what));
    EXPECT_THAT(ddp_->StepOptimizer(optimizer_), Refused(what));
  }

  LoopbackCommunicator communicator_;
  std::shared_ptr<Weights> model_ = std::make_shared<Weights>(Names{"a"});
  ::torch::optim::SGD optimizer_{model_->parameters(), 1};
  std::unique_ptr<DistributedDataParallel> ddp_;
};

// ---- passes ----

TEST_F(WrongUseTest, TwoMicroBatchesWithoutABackward) {
  Wrap(Following(PlanOf(3)));
  ddp_->Accumulate();
  EXPECT_FALSE(ddp_->Accumulate().exchange);
  EXPECT_THAT(ddp_->Backward(Loss()),
              Refused("the one before it has not run its backward"));
}

TEST_F(WrongUseTest, APassThatTheCallerRunsIsABackwardToo) {
  Wrap(Following(PlanOf(3)));
  for (int micro = 0; micro < 3; ++micro) {
    ddp_->Accumulate();
    (Loss() / 3).backward();
  }
  ASSERT_OK(ddp_->Synchronize());
  ASSERT_OK(ddp_->FinishStep());
  EXPECT_FLOAT_EQ(model_->Gradient("a"), 2);
}

TEST_F(WrongUseTest, APassThatReachesNothingIsABackwardToo) {
  Wrap(Following(PlanOf(2)));
  ddp_->Accumulate();
  ASSERT_OK(ddp_->Backward(::torch::ones({}).requires_grad_()));
  ASSERT_OK(Run());
  EXPECT_EQ(model_->Gradient("a"), 1);
}

TEST_F(WrongUseTest, AnotherMicroBatchInTheMiddleOfAStep) {
  Wrap(Following(PlanOf(1)));
  ddp_->Accumulate();
  Loss().backward();
  ASSERT_OK(ddp_->Synchronize());
  ddp_->Accumulate();
  EXPECT_THAT(ddp_->Backward(Loss()), Refused("was not finished"));
}

TEST_F(WrongUseTest, TheDataEndsBeforeABackward) {
  Wrap(Following(PlanOf(2)));
  ddp_->Accumulate();
  EXPECT_THAT(ddp_->Flush(), Refused("before its backward"));
  ASSERT_OK(ddp_->DropWindow());
  EXPECT_OK(ddp_->Flush());
}

TEST_F(WrongUseTest, WeightsThatWereNotDeclared) {
  schedule::Terms terms;
  terms.weighting = schedule::Weighting::kTokens;
  Wrap(Following(PlanOf(1, terms)));
  EXPECT_THAT(ddp_->Backward(Loss()), Refused("Accumulate({weight})"));
}

TEST_F(WrongUseTest, PlacesInAWindowThatWereNotDeclared) {
  schedule::Terms terms;
  terms.sync_each_batch = true;
  Wrap(Following(PlanOf(2, terms)));
  EXPECT_THAT(ddp_->Backward(Loss()), Refused("declare each by Accumulate()"));
  ExpectOver("declare each by Accumulate()");
}

TEST_F(WrongUseTest, ASecondPassOfAMicroBatch) {
  Wrap(Following(PlanOf(1)));
  ASSERT_OK(Run());
  EXPECT_THAT(ddp_->Backward(Loss()), Refused("has exchanged its own"));
  ExpectOver("has exchanged its own");
}

TEST_F(WrongUseTest, ASecondExchangeOfAMicroBatch) {
  Wrap(Following(PlanOf(1)));
  ASSERT_OK(Run());
  EXPECT_THAT(ddp_->Synchronize(), Refused("has exchanged its own"));
  ExpectOver("has exchanged its own");
}

TEST_F(WrongUseTest, AFailureAfterTheExchange) {
  const schedule::Plan plan = PlanOf(1);
  schedule::FakeSchedule schedule(1, plan);
  Wrap(Following(plan, schedule.gate(0)));
  ASSERT_OK(Run());
  EXPECT_THAT(ddp_->FailMicroBatch(absl::DataLossError("too late")),
              Refused("call Accumulate before each forward"));
  EXPECT_OK(ddp_->StepOptimizer(optimizer_));
  // The next window knows nothing of it.
  ASSERT_OK(Run());
  EXPECT_FALSE(ddp_->skipped());
  EXPECT_EQ(schedule.tickets(0)[1].skip, "");
}

// ---- forwards ----

TEST_F(WrongUseTest, AForwardBeforeItsMicroBatch) {
  Wrap(Following(PlanOf(2)));
  const Tensor loss = Loss();
  const MicroBatch micro = ddp_->Accumulate();
  EXPECT_THAT(ddp_->Backward(loss * micro.loss_scale),
              Refused("call Accumulate before"));
  ExpectOver("call Accumulate before");
}

TEST_F(WrongUseTest, AForwardBeforeItsMicroBatchWithNothingAfterIt) {
  Wrap(Following(PlanOf(2)));
  const Tensor loss = Loss();
  ddp_->Accumulate();
  EXPECT_THAT(ddp_->Backward(loss), Refused("call Accumulate before"));
}

TEST_F(WrongUseTest, AForwardBeforeItsNoSyncScope) {
  Wrap(Following(PlanOf(1)));
  const Tensor outside = Loss();
  {
    const auto no_sync = ddp_->NoSync();
    EXPECT_THAT(ddp_->Backward(outside / 2), Refused("open it before"));
  }
  ExpectOver("open it before");
}

// The peers of a rank whose Backward has refused wait for it no longer.
TEST_F(WrongUseTest, ARefusedPassEndsTheStepOnAllRanks) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = torch::Wrap(rank, model, Following(PlanOf(1)));
    const Tensor early = model->Use({"a"}, 2);
    ddp->Accumulate();
    if (rank.index == 0) {
      EXPECT_THAT(ddp->Backward(early), Refused("call Accumulate before"));
      return;
    }
    EXPECT_FALSE(ddp->Backward(model->Use({"a"}, 2)).ok());
  });
}

TEST_F(WrongUseTest, OneForwardMayHaveSeveralLosses) {
  Wrap(Following(PlanOf(1)));
  ddp_->Accumulate();
  const Tensor shared = model_->weight("a") * 3;
  {
    const auto no_sync = ddp_->NoSync();
    ASSERT_OK(ddp_->Backward(shared.sum() * 1));
  }
  ASSERT_OK(ddp_->Backward(shared.sum() * 2));
  EXPECT_EQ(model_->Gradient("a"), 9);
}

TEST_F(WrongUseTest, AnOlderGraphMayBeAPartOfTheForward) {
  Wrap(Following(PlanOf(1)));
  // Such as another module's output, or a state that goes on.
  const Tensor input = ::torch::ones({2}).requires_grad_() * 5;
  ddp_->Accumulate();
  ASSERT_OK(ddp_->Backward((model_->weight("a") * input).sum()));
  EXPECT_EQ(model_->Gradient("a"), 5);
}

// ---- optimizer steps ----

TEST_F(WrongUseTest, AnOptimizerStepBeforeTheWindowsEnd) {
  Wrap(Following(PlanOf(2)));
  EXPECT_THAT(ddp_->StepOptimizer(optimizer_),
              Refused("without gradients that were exchanged"));
  ASSERT_OK(Run());
  EXPECT_THAT(ddp_->StepOptimizer(optimizer_),
              Refused("after 1 of 2 micro-batches"));
  EXPECT_EQ(model_->weight("a")[0].item<double>(), 1);
  ASSERT_OK(Run());
  ASSERT_OK_AND_ASSIGN(const bool stepped, ddp_->StepOptimizer(optimizer_));
  EXPECT_TRUE(stepped);
  EXPECT_EQ(model_->weight("a")[0].item<double>(), -1);
  EXPECT_THAT(ddp_->StepOptimizer(optimizer_), Refused("since the last one"));
  ddp_->Accumulate();
  EXPECT_FALSE(ddp_->StepOptimizer(optimizer_).ok());
}

TEST_F(WrongUseTest, AnOptimizerStepOnLocalSums) {
  Wrap(Following(PlanOf(1)));
  ASSERT_OK(ddp_->Backward(Loss()));
  {
    const auto no_sync = ddp_->NoSync();
    ASSERT_OK(ddp_->Backward(Loss()));
  }
  EXPECT_THAT(ddp_->StepOptimizer(optimizer_), Refused("not exchanged them"));
}

TEST_F(WrongUseTest, AnOptimizerStepBetweenSynchronizeAndFinishStep) {
  Wrap(Following(PlanOf(1)));
  Loss().backward();
  ASSERT_OK(ddp_->Synchronize());
  EXPECT_THAT(ddp_->StepOptimizer(optimizer_), Refused("between steps"));
  ASSERT_OK(ddp_->FinishStep());
  EXPECT_OK(ddp_->StepOptimizer(optimizer_));
}

TEST_F(WrongUseTest, UndeclaredPassesAreCountedForTheTicket) {
  const schedule::Plan plan = PlanOf(3);
  schedule::FakeSchedule schedule(1, plan);
  Wrap(Following(plan, schedule.gate(0)));
  for (int step = 0; step < 2; ++step) {
    {
      const auto no_sync = ddp_->NoSync();
      ASSERT_OK(ddp_->Backward(Loss()));
      if (step == 0) Loss().backward();
    }
    ASSERT_OK(ddp_->Backward(Loss()));
  }
  const auto tickets = schedule.tickets(0);
  EXPECT_EQ(tickets[0].micro_batches, 3);
  EXPECT_EQ(tickets[1].micro_batches, 2);
  EXPECT_EQ(tickets[1].step, 1);
}

// ---- options ----

absl::Status Creation(
    const DistributedDataParallelOptions& options,
    std::unique_ptr<Hook> hook = std::make_unique<AverageHook>()) {
  LoopbackCommunicator communicator;
  return DistributedDataParallel::Create(std::make_shared<Weights>(Names{"a"}),
                                         &communicator, std::move(hook),
                                         options)
      .status();
}

auto RefusedOptions(const std::string& what) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
}

TEST(OptionsTest, WhatContradictsThePlanIsRefusedWithBothValues) {
  schedule::Terms terms;
  terms.tail = schedule::TailPolicy::kCarry;
  const DistributedDataParallelOptions following = Following(PlanOf(2, terms));
  auto options = following;
  options.accumulation_steps = 4;
  EXPECT_THAT(Creation(options),
              RefusedOptions("accumulation=4 against accumulation=2"));
  options.accumulation_steps = 2;  // as the plan has it
  EXPECT_OK(Creation(options));
  options = following;
  options.terms.tail = schedule::TailPolicy::kDrop;
  options.terms.max_steps = 7;
  EXPECT_THAT(Creation(options),
              RefusedOptions("max_steps=7 against max_steps=0, tail=drop "
                             "against tail=carry"));
  options = following;
  options.reducer.uneven_inputs = true;
  EXPECT_THAT(Creation(options),
              RefusedOptions("uneven_data=wait_for_all against "
                             "uneven_data=refuse"));
  options.reducer.end_at_first = true;
  EXPECT_THAT(Creation(options), RefusedOptions("uneven_data=end_at_first"));
}

TEST(OptionsTest, WhatAnOperatorHasChangedCounts) {
  auto options = Following(PlanOf(2));
  options.accumulation_steps = 4;
  options.terms.max_steps = 7;
  options.changed_by_operator = {"accumulation"};
  EXPECT_THAT(Creation(options),
              AllOf(RefusedOptions("max_steps=7 against max_steps=0"),
                    Not(RefusedOptions("accumulation=4"))));
  options.changed_by_operator = {"accumulation", "max_steps"};
  EXPECT_OK(Creation(options));
}

// Leaves each rank what it has.
class OwnGradientsHook : public AverageHook {
 public:
  GradientReach reach() const override { return GradientReach::kOwn; }
};

TEST(OptionsTest, RanksThatSeeOtherGradientsAgreeOnASkipByVote) {
  auto options = Following(PlanOf(1));
  options.make_hook = nullptr;
  options.skip_non_finite = true;
  EXPECT_OK(Creation(options));
  EXPECT_THAT(Creation(options, std::make_unique<OwnGradientsHook>()),
              RefusedOptions("needs the plan's commit_vote, since each rank "
                             "sees averages of its own"));
  schedule::Terms votes;
  votes.commit_vote = true;
  schedule::FakeSchedule schedule(1, PlanOf(1, votes));
  options.plan = PlanOf(1, votes);
  options.reducer.gate = schedule.gate(0);
  EXPECT_OK(Creation(options, std::make_unique<OwnGradientsHook>()));
}

TEST(OptionsTest, ThatContradictEachOther) {
  const auto refused = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  schedule::Terms each;
  each.sync_each_batch = true;
  auto options = Following(PlanOf(2, each));
  EXPECT_OK(Creation(options));
  options.reducer.max_norm = 1;
  EXPECT_THAT(Creation(options),
              refused("sync_each_batch does not go with max_norm"));
  options = Following(PlanOf(2));
  options.reducer.slices = true;
  EXPECT_THAT(Creation(options), refused("set zero to 1"));
  const auto overlapped = [](const Tensor& parameter) {
    return std::make_unique<::torch::optim::SGD>(std::vector<Tensor>{parameter},
                                                 1);
  };
  options = Following(PlanOf(2, each));
  options.overlapped_optimizer = overlapped;
  EXPECT_THAT(Creation(options),
              refused("overlapped_optimizer does not go with sync_each_batch"));

  schedule::Terms votes;
  votes.commit_vote = true;
  EXPECT_THAT(Creation(Following(PlanOf(1, votes))), refused("set a gate"));
  schedule::FakeSchedule schedule(1, PlanOf(1, votes));
  options = Following(PlanOf(1, votes), schedule.gate(0));
  EXPECT_OK(Creation(options));
  options.overlapped_optimizer = overlapped;
  EXPECT_THAT(Creation(options),
              refused("overlapped_optimizer does not go with commit_vote"));
  options = Following(PlanOf(1));
  options.overlapped_optimizer = overlapped;
  options.skip_non_finite = true;
  EXPECT_THAT(Creation(options),
              refused("overlapped_optimizer does not go with skip_non_finite"));
  options.skip_non_finite = false;
  options.commit_with_optimizer = true;
  EXPECT_THAT(
      Creation(options),
      refused("overlapped_optimizer does not go with commit_with_optimizer"));

  options = Following(PlanOf(1));
  options.plan->hook = "whole";
  EXPECT_THAT(Creation(options), refused("the hook is average, and version 1 "
                                         "of the plan, by make_hook, is "
                                         "whole: make the hook from the plan"));

  schedule::Terms terms;
  terms.tail = schedule::TailPolicy::kCarry;
  terms.uneven_data = schedule::UnevenData::kWaitForAll;
  EXPECT_THAT(Creation(Following(PlanOf(1, terms))), refused("tail=carry"));
}

}  // namespace
}  // namespace coxswain::torch::wrong_use_test
