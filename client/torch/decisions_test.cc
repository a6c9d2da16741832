// What all ranks decide about a step, and what they do then.

#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"
#include "schedule/fake_step_gate.h"

namespace coxswain::torch {
namespace {

using testing::HasSubstr;
using ::torch::Tensor;

using Names = std::vector<std::string>;

schedule::Terms Voting() {
  schedule::Terms terms;
  terms.commit_vote = true;
  return terms;
}

double Value(Weights& model) { return model.weight("a")[0].item<double>(); }

// A rank with a model of one weight, an optimizer of rate 1, and a schedule
// that it shares with the others.
struct Trainer {
  Trainer(const TestRank& rank, schedule::FakeSchedule& schedule,
          const schedule::Plan& plan, bool skip_non_finite = false)
      : Trainer(rank, Options(rank, schedule, plan, skip_non_finite)) {}
  Trainer(const TestRank& rank, const DistributedDataParallelOptions& options)
      : model(std::make_shared<Weights>(Names{"a"})),
        ddp(Wrap(rank, model, options)),
        optimizer(model->parameters(), /*lr=*/1) {}

  static DistributedDataParallelOptions Options(
      const TestRank& rank, schedule::FakeSchedule& schedule,
      const schedule::Plan& plan, bool skip_non_finite) {
    auto options = Following(plan, schedule.gate(rank.index));
    options.skip_non_finite = skip_non_finite;
    return options;
  }

  absl::Status Run(double x) {
    const MicroBatch micro = ddp->Accumulate();
    return ddp->Backward(model->Use({"a"}, x) * micro.loss_scale);
  }
  bool Step() {
    const auto stepped = ddp->StepOptimizer(optimizer);
    EXPECT_OK(stepped);
    return stepped.ok() && *stepped;
  }

  std::shared_ptr<Weights> model;
  std::unique_ptr<DistributedDataParallel> ddp;
  ::torch::optim::SGD optimizer;
};

const AverageHook& HookOf(Trainer& trainer) {
  return dynamic_cast<const AverageHook&>(trainer.ddp->hook());
}

// ---- skipped steps ----

TEST(SkipTest, OneRanksVoteSkipsTheStepOnAllAndLeavesNoTrace) {
  const schedule::Plan plan = PlanOf(1, Voting());
  schedule::FakeSchedule schedule(2, plan);
  OnRanks(2, [&](const TestRank& rank) {
    Trainer trainer(rank, schedule, plan);
    ASSERT_OK(trainer.Run(2 + rank.index));
    EXPECT_FALSE(trainer.ddp->skipped());
    EXPECT_TRUE(trainer.Step());
    EXPECT_EQ(Value(*trainer.model), 1 - 2.5);

    trainer.ddp->Accumulate();
    trainer.model->Use({"a"}, 7).backward();
    ASSERT_OK(trainer.ddp->Synchronize());
    EXPECT_EQ(trainer.model->Gradient("a"), 7);
    ASSERT_OK(trainer.ddp->FinishStep(rank.index == 0, "the loss was odd"));
    EXPECT_TRUE(trainer.ddp->skipped());
    EXPECT_EQ(trainer.ddp->decision().reason, "rank 1: the loss was odd");
    EXPECT_EQ(trainer.model->Gradient("a"), 0);
    EXPECT_EQ(HookOf(trainer).step(), 1);
    EXPECT_EQ(HookOf(trainer).rollbacks(), 1);
    EXPECT_FALSE(trainer.Step());
    EXPECT_EQ(Value(*trainer.model), 1 - 2.5);

    ASSERT_OK(trainer.Run(4));
    EXPECT_FALSE(trainer.ddp->skipped());
    EXPECT_EQ(trainer.model->Gradient("a"), 4);
    EXPECT_TRUE(trainer.Step());
    EXPECT_EQ(HookOf(trainer).step(), 2);
  });
}

TEST(SkipTest, AVoteThatDoesNotCountIsRefused) {
  const schedule::Plan plan = PlanOf(1);
  schedule::FakeSchedule schedule(1, plan);
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  Trainer trainer(rank, schedule, plan);
  trainer.model->Use({"a"}, 1).backward();
  ASSERT_OK(trainer.ddp->Synchronize());
  EXPECT_THAT(trainer.ddp->FinishStep(false),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("set commit_vote=true")));
  EXPECT_OK(trainer.ddp->FinishStep());
  EXPECT_TRUE(trainer.Step());
}

TEST(NewcomersTest, AllDecisionsOfAWindowNameThem) {
  schedule::Terms terms;
  terms.sync_each_batch = true;
  const schedule::Plan plan = PlanOf(2, terms);
  schedule::FakeSchedule schedule(1, plan);
  schedule.NameAt(0, {"host-b:7", 42, 1});
  schedule.NameAt(1, {"host-c:7", 43, 2});
  // Another window, of which the first micro-batch is skipped.
  schedule.NameAt(2, {"host-d:7", 44, 3});
  schedule.SkipAt(2);
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  Trainer trainer(rank, schedule, plan);
  const auto named = [&trainer] {
    std::vector<uint64_t> incarnations;
    for (const auto& newcomer : trainer.ddp->decision().newcomers) {
      incarnations.push_back(newcomer.incarnation);
    }
    return incarnations;
  };
  ASSERT_OK(trainer.Run(1));
  ASSERT_OK(trainer.Run(2));
  EXPECT_THAT(named(), testing::ElementsAre(1, 2));
  EXPECT_TRUE(trainer.Step());
  ASSERT_OK(trainer.Run(3));
  ASSERT_OK(trainer.Run(4));
  EXPECT_THAT(named(), testing::ElementsAre(3));
  EXPECT_FALSE(trainer.Step());
  ASSERT_OK(trainer.Run(5));
  ASSERT_OK(trainer.Run(6));
  EXPECT_THAT(named(), testing::IsEmpty());
}

// In which micro-batch of the window rank 0 fails.
class FailureTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(MicroBatches, FailureTest, testing::Values(0, 1));

TEST_P(FailureTest, AMicroBatchThatFailsOnOneRankSkipsTheStepOnAll) {
  const schedule::Plan plan = PlanOf(2);
  schedule::FakeSchedule schedule(2, plan);
  OnRanks(2, [&](const TestRank& rank) {
    Trainer trainer(rank, schedule, plan);
    for (int micro = 0; micro < 2; ++micro) {
      if (rank.index == 0 && micro == GetParam()) {
        trainer.ddp->Accumulate();
        ASSERT_OK(trainer.ddp->FailMicroBatch(
            absl::InvalidArgumentError("label 17 of 10")));
      } else {
        ASSERT_OK(trainer.Run(8));
      }
    }
    EXPECT_TRUE(trainer.ddp->skipped());
    EXPECT_EQ(trainer.ddp->decision().reason, "rank 0: label 17 of 10");
    EXPECT_EQ(trainer.model->Gradient("a"), 0);
    EXPECT_FALSE(trainer.Step());
    EXPECT_EQ(HookOf(trainer).step(), 0);
    // The next window knows nothing of it.
    ASSERT_OK(trainer.Run(2));
    ASSERT_OK(trainer.Run(4));
    EXPECT_EQ(trainer.model->Gradient("a"), 3);
    EXPECT_TRUE(trainer.Step());
    EXPECT_EQ(schedule.tickets(rank.index)[1].skip, "");
  });
}

TEST(FailureTest, WithoutAGateItEndsTheJob) {
  OnRanks(2, [](const TestRank& rank) {
    Trainer trainer(rank, Following(PlanOf(1)));
    trainer.ddp->Accumulate();
    const absl::Status status =
        rank.index == 0
            ? trainer.ddp->FailMicroBatch(absl::DataLossError("no such file"))
            : trainer.ddp->Backward(trainer.model->Use({"a"}, 1));
    EXPECT_FALSE(status.ok());
    if (rank.index == 0) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                   HasSubstr("cannot skip it: no such file")));
    }
  });
}

enum class How { kAlone, kGate, kVote };
class NonFiniteTest : public testing::TestWithParam<How> {};
INSTANTIATE_TEST_SUITE_P(Agreements, NonFiniteTest,
                         testing::Values(How::kAlone, How::kGate, How::kVote));

TEST_P(NonFiniteTest, AStepThatIsNotFiniteIsSkippedByAll) {
  const schedule::Plan plan =
      PlanOf(1, GetParam() == How::kVote ? Voting() : schedule::Terms());
  schedule::FakeSchedule schedule(2, plan);
  OnRanks(2, [&](const TestRank& rank) {
    auto options = Trainer::Options(rank, schedule, plan, true);
    if (GetParam() == How::kAlone) options.reducer.gate = nullptr;
    Trainer trainer(rank, options);
    const double infinite = std::numeric_limits<double>::infinity();
    ASSERT_OK(trainer.Run(rank.index == 1 ? infinite : 1));
    EXPECT_TRUE(trainer.ddp->skipped());
    // A vote names whose gradient it was.
    EXPECT_THAT(
        trainer.ddp->decision().reason,
        HasSubstr(GetParam() == How::kVote
                      ? "rank 1: not finite: the gradient of \"a\" on rank 1"
                      : "not finite: 2 elements of the averages of \"a\""));
    EXPECT_EQ(trainer.model->Gradient("a"), 0);
    EXPECT_FALSE(trainer.Step());
    EXPECT_EQ(Value(*trainer.model), 1);
    EXPECT_EQ(HookOf(trainer).step(), 0);
    ASSERT_OK(trainer.Run(4));
    EXPECT_TRUE(trainer.Step());
    EXPECT_EQ(Value(*trainer.model), -3);
  });
}

// ---- other decisions ----

TEST(DecisionTest, AllStopAfterTheSameStep) {
  const schedule::Plan plan = PlanOf(1);
  schedule::FakeSchedule schedule(2, plan);
  schedule.StopAt(1, "rank 1 was asked to");
  OnRanks(2, [&](const TestRank& rank) {
    Trainer trainer(rank, schedule, plan);
    int steps = 0;
    while (!trainer.ddp->stopping()) {
      ASSERT_OK(trainer.Run(1));
      EXPECT_TRUE(trainer.Step());
      ++steps;
    }
    EXPECT_EQ(steps, 2);
    EXPECT_EQ(trainer.ddp->decision().stop, "rank 1 was asked to");
  });
}

TEST(DecisionTest, AnErrorOfTheGateEndsTheStepOnAllRanks) {
  const schedule::Plan plan = PlanOf(1);
  schedule::FakeSchedule schedule(2, plan);
  schedule.FailAt(1, absl::AbortedError("rank 1 skipped a batch"));
  OnRanks(2, [&](const TestRank& rank) {
    Trainer trainer(rank, schedule, plan);
    ASSERT_OK(trainer.Run(1));
    EXPECT_TRUE(trainer.Step());
    EXPECT_THAT(trainer.Run(1).message(), HasSubstr("rank 1 skipped a batch"));
    EXPECT_FALSE(trainer.ddp->StepOptimizer(trainer.optimizer).ok());
    EXPECT_EQ(HookOf(trainer).step(), 1);
  });
}

TEST(DecisionTest, EvaluationBetweenMicroBatchesDoesNotDisturbTheCount) {
  const schedule::Plan plan = PlanOf(2);
  schedule::FakeSchedule schedule(2, plan);
  OnRanks(2, [&](const TestRank& rank) {
    Trainer trainer(rank, schedule, plan);
    for (int batch = 0; batch < 6; ++batch) {
      ASSERT_OK(trainer.Run(batch + 1));
      for (int i = 0; i < 3; ++i) {
        const ::torch::NoGradGuard no_grad;
        ASSERT_OK(trainer.ddp->accumulator().BeginMicroBatch("evaluation"));
        (void)trainer.model->Use({"a"}, 1);
      }
      if (batch % 2 == 0) continue;
      EXPECT_EQ(trainer.model->Gradient("a"), batch + 0.5);
      EXPECT_TRUE(trainer.Step());
    }
    const auto tickets = schedule.tickets(rank.index);
    ASSERT_EQ(tickets.size(), 3u);
    for (int64_t step = 0; step < 3; ++step) {
      EXPECT_EQ(tickets[step].step, step);
      EXPECT_EQ(tickets[step].micro_batches, 2);
      EXPECT_EQ(tickets[step].window, 2);
    }
  });
}

TEST(DecisionTest, TicketsCarryTheParametersChecksumInItsSteps) {
  schedule::Plan plan = PlanOf(1);
  plan.terms.checksum_every = 2;
  schedule::FakeSchedule schedule(2, plan);
  OnRanks(2, [&](const TestRank& rank) {
    Trainer trainer(rank, schedule, plan);
    for (int step = 0; step < 3; ++step) {
      if (step == 2 && rank.index == 1) {
        const ::torch::NoGradGuard no_grad;
        trainer.model->weight("a").add_(1e-6);
      }
      ASSERT_OK(trainer.Run(1 + rank.index));
      EXPECT_TRUE(trainer.Step());
    }
  });
  const auto first = schedule.tickets(0);
  const auto second = schedule.tickets(1);
  ASSERT_TRUE(first[0].checksum && second[0].checksum);
  EXPECT_EQ(first[0].checksum, second[0].checksum);
  EXPECT_FALSE(first[1].checksum || second[1].checksum);
  EXPECT_FALSE(first[0].replicated_checksum.has_value());
  ASSERT_TRUE(first[2].checksum && second[2].checksum);
  EXPECT_NE(first[2].checksum, first[0].checksum);
  EXPECT_NE(first[2].checksum, second[2].checksum);
}

TEST(DecisionTest, TicketsCarryTheChecksumOfWhatIsReplicated) {
  schedule::Plan plan = PlanOf(1);
  plan.terms.checksum_every = 1;
  schedule::FakeSchedule schedule(2, plan);
  OnRanks(2, [&](const TestRank& rank) {
    auto options = Following(plan, schedule.gate(rank.index));
    options.replicated_parameters = {"b"};
    const auto model = std::make_shared<Weights>(Names{"a", "b"});
    const auto ddp = Wrap(rank, model, options);
    ::torch::optim::SGD optimizer(model->parameters(), /*lr=*/1);
    for (const std::string changed : {"", "a", "b"}) {
      if (rank.index == 1 && !changed.empty()) {
        const ::torch::NoGradGuard no_grad;
        model->weight(changed).add_(1e-6);
      }
      (void)ddp->Accumulate();
      ASSERT_OK(ddp->Backward(model->Use({"a", "b"}, 1)));
      ASSERT_OK(ddp->StepOptimizer(optimizer));
    }
  });
  const auto first = schedule.tickets(0);
  const auto second = schedule.tickets(1);
  for (const int step : {0, 1, 2}) {
    ASSERT_TRUE(first[step].replicated_checksum.has_value());
    EXPECT_EQ(first[step].checksum == second[step].checksum, step == 0);
    EXPECT_EQ(
        first[step].replicated_checksum == second[step].replicated_checksum,
        step < 2);
  }
}

// ---- plans ----

schedule::Plan NextPlan(int accumulation_steps, const std::string& hook,
                        schedule::HookStatePolicy policy) {
  schedule::Plan plan = PlanOf(accumulation_steps);
  plan.version = 2;
  plan.hook = hook;
  plan.terms.hook_state = policy;
  return plan;
}

TEST(PlanChangeTest, WindowsAndHookChangeInTheSameStepEverywhere) {
  const schedule::Plan plan = PlanOf(1);
  schedule::FakeSchedule schedule(3, plan);
  schedule.ChangePlanAt(
      1, NextPlan(2, "whole", schedule::HookStatePolicy::kReset));
  OnRanks(3, [&](const TestRank& rank) {
    Trainer trainer(rank, schedule, plan);
    for (const int window : {1, 1, 2, 2}) {
      for (int micro = 0; micro < window; ++micro) {
        EXPECT_EQ(trainer.ddp->plan().accumulation_steps, window);
        ASSERT_OK(trainer.Run(5));
      }
      // The averages stay where they are while the hook changes.
      EXPECT_EQ(trainer.model->Gradient("a"), 5);
      EXPECT_TRUE(trainer.Step());
    }
    EXPECT_EQ(trainer.ddp->plan().version, 2);
    EXPECT_EQ(HookOf(trainer).spec(), "whole");
    EXPECT_EQ(HookOf(trainer).step(), 2);
    const auto tickets = schedule.tickets(rank.index);
    ASSERT_EQ(tickets.size(), 4u);
    for (size_t step = 0; step < tickets.size(); ++step) {
      const bool late = step >= 2;
      EXPECT_EQ(tickets[step].plan_version, late ? 2 : 1);
      EXPECT_EQ(tickets[step].micro_batches, late ? 2 : 1);
      EXPECT_EQ(tickets[step].hook, late ? "whole" : "average");
    }
  });
}

TEST(PlanChangeTest, TheSameHookKeepsItsState) {
  const schedule::Plan plan = PlanOf(1);
  schedule::FakeSchedule schedule(2, plan);
  schedule::Plan next =
      NextPlan(3, "average", schedule::HookStatePolicy::kCarry);
  next.compression_start_step = 7;
  schedule.ChangePlanAt(0, next);
  OnRanks(2, [&](const TestRank& rank) {
    Trainer trainer(rank, schedule, plan);
    const Hook* const before = &trainer.ddp->hook();
    ASSERT_OK(trainer.Run(1));
    EXPECT_NE(&trainer.ddp->hook(), before);
    EXPECT_EQ(trainer.ddp->hook().step(), 1);
  });
}

TEST(PlanChangeTest, AStateThatCannotBeCarriedIsAnErrorOnAllRanks) {
  const schedule::Plan plan = PlanOf(1);
  schedule::FakeSchedule schedule(2, plan);
  schedule.ChangePlanAt(
      0, NextPlan(1, "whole", schedule::HookStatePolicy::kCarry));
  OnRanks(2, [&](const TestRank& rank) {
    Trainer trainer(rank, schedule, plan);
    EXPECT_THAT(trainer.Run(1), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("hook_state=reset")));
  });
}

TEST(PlanChangeTest, AHookThatTheProgramCannotMakeWaitsForTheNextGeneration) {
  const schedule::Plan plan = PlanOf(1);
  schedule::FakeSchedule schedule(2, plan);
  schedule.ChangePlanAt(
      0, NextPlan(1, "whole", schedule::HookStatePolicy::kReset));
  OnRanks(2, [&](const TestRank& rank) {
    auto options = Trainer::Options(rank, schedule, plan, false);
    options.make_hook = nullptr;
    Trainer trainer(rank, options);
    EXPECT_THAT(trainer.Run(1), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("the next generation")));
  });
}

// Lets the ranks go apart, and averages only when asked to.
class ApartHook : public AverageHook {
 public:
  std::string spec() const override { return "apart"; }
  bool needs_averager() const override { return true; }
};

class ApartAverager : public Averager {
 public:
  explicit ApartAverager(std::vector<std::string>* calls) : calls_(*calls) {}
  std::string spec() const override { return "apart"; }
  absl::Status Configure(const std::vector<ParameterSpec>&,
                         const std::vector<Span>&, Communicator&) override {
    calls_.push_back("configure");
    return absl::OkStatus();
  }
  absl::Status AfterOptimizerStep(const std::vector<Span>&) override {
    calls_.push_back("step");
    ++step_;
    return absl::OkStatus();
  }
  absl::Status AverageNow(const std::vector<Span>&) override {
    calls_.push_back("average");
    return absl::OkStatus();
  }
  int64_t step() const override { return step_; }
  bool averages_next() const override { return false; }
  bool diverged() const override { return step_ > 0; }
  absl::StatusOr<HookState> SaveState(Communicator&) override {
    HookState state;
    state.step = step_;
    return state;
  }
  absl::Status LoadState(const HookState& state, int, int) override {
    step_ = state.step;
    return absl::OkStatus();
  }

 private:
  std::vector<std::string>& calls_;
  int64_t step_ = 0;
};

TEST(PlanChangeTest, LocalStepsBeginAndEndBetweenOptimizerSteps) {
  schedule::Plan plan = PlanOf(1);
  plan.terms.checksum_every = 1;
  schedule::FakeSchedule schedule(2, plan);
  schedule::Plan apart =
      NextPlan(1, "apart", schedule::HookStatePolicy::kReset);
  apart.terms.checksum_every = 1;
  schedule::Plan longer = apart;
  longer.version = 3;
  longer.compression_start_step = 9;
  longer.terms.hook_state = schedule::HookStatePolicy::kCarry;
  schedule::Plan together =
      NextPlan(1, "average", schedule::HookStatePolicy::kReset);
  together.version = 4;
  schedule.ChangePlanAt(0, apart);
  schedule.ChangePlanAt(2, longer);
  schedule.ChangePlanAt(3, together);
  OnRanks(2, [&](const TestRank& rank) {
    std::vector<std::string> calls;
    auto options = Trainer::Options(rank, schedule, plan, false);
    options.make_hook = [](const schedule::Plan& next)
        -> absl::StatusOr<std::unique_ptr<Hook>> {
      if (next.hook == "apart") return std::make_unique<ApartHook>();
      return std::make_unique<AverageHook>();
    };
    options.make_averager = [&](const schedule::Plan& next)
        -> absl::StatusOr<std::unique_ptr<Averager>> {
      std::unique_ptr<Averager> averager;
      if (next.hook == "apart") {
        averager = std::make_unique<ApartAverager>(&calls);
      }
      return averager;
    };
    Trainer trainer(rank, options);
    for (int step = 0; step < 5; ++step) {
      calls.emplace_back(absl::StrCat(step, ":"));
      ASSERT_OK(trainer.Run(1));
      EXPECT_TRUE(trainer.Step());
      const bool local = step < 3;
      EXPECT_EQ(trainer.ddp->averager() != nullptr, local) << step;
      EXPECT_EQ(trainer.ddp->hook().spec(), local ? "apart" : "average");
      if (local) {
        EXPECT_EQ(trainer.ddp->hook().step(), step);
        EXPECT_EQ(trainer.ddp->averager()->step(), step);
      }
    }
    EXPECT_THAT(calls,
                testing::ElementsAre("0:", "configure", "1:", "step",
                                     "2:", "step", "average", "configure",
                                     "3:", "step", "average", "4:"));
    // Checksums only where the ranks are together.
    const auto tickets = schedule.tickets(rank.index);
    EXPECT_TRUE(tickets[0].checksum && tickets[1].checksum);
    EXPECT_FALSE(tickets[2].checksum);
    EXPECT_EQ(tickets[1].hook, "apart");
    EXPECT_EQ(tickets[4].hook, "average");
  });
}

}  // namespace
}  // namespace coxswain::torch
