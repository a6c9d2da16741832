#include "train/parameter_exchange.h"

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/fake_step_gate.h"
#include "schedule/plan.h"

namespace coxswain {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::FloatNear;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);

// What a rank trains: two parameters, whose optimizer subtracts the gradients.
struct Model {
  std::vector<double> wide = {10, 10, 10, 10};
  std::vector<double> wide_gradient = std::vector<double>(4);
  std::vector<float> narrow = {10, 10};
  std::vector<float> narrow_gradient = std::vector<float>(2);
  int steps = 0;

  std::vector<TrainedParameter> parameters() {
    return {
        {"wide", {2, 2}, wide.data(), wide_gradient.data(), DType::kFloat64},
        {"narrow", {2}, narrow.data(), narrow_gradient.data()}};
  }
  void Fill(double gradient) {
    wide_gradient.assign(4, gradient);
    narrow_gradient.assign(2, static_cast<float>(gradient));
  }
  absl::Status Step() {
    ++steps;
    for (size_t i = 0; i < 4; ++i) wide[i] -= wide_gradient[i];
    for (size_t i = 0; i < 2; ++i) narrow[i] -= narrow_gradient[i];
    return absl::OkStatus();
  }
};

struct Rank {
  int index = 0;
  Model model;
  std::unique_ptr<ParameterExchange> exchange;

  // A micro-batch with this gradient, and the step if it ends a window.
  absl::Status Train(double gradient, const Accumulator::Begin& begin = {}) {
    COXSWAIN_ASSIGN_OR_RETURN(const MicroBatch micro, exchange->Begin(begin));
    if (!micro.empty) model.Fill(gradient);
    COXSWAIN_RETURN_IF_ERROR(exchange->End());
    return micro.sync ? exchange->StepOptimizer() : absl::OkStatus();
  }
};

class ParameterExchangeTest : public ::testing::Test {
 protected:
  using Work = std::function<absl::Status(Rank&)>;

  // Lets each rank do `work` in a thread of its own; returns what their models
  // have come to.
  std::vector<Model> Run(int size, const Work& work) {
    if (schedule_ == nullptr) {
      schedule_ = std::make_unique<schedule::FakeSchedule>(size, plan_);
    }
    const auto world = InProcessWorld::Create(size, kTimeout);
    std::vector<Rank> ranks(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    statuses_.assign(static_cast<size_t>(size), absl::OkStatus());
    for (int i = 0; i < size; ++i) {
      threads.emplace_back([&, i] {
        const auto communicator = world->MakeRank(i);
        Rank& rank = ranks[static_cast<size_t>(i)];
        rank.index = i;
        statuses_[static_cast<size_t>(i)] =
            RunRank(&rank, communicator.get(), work);
        rank.exchange.reset();
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<Model> models;
    for (Rank& rank : ranks) models.push_back(std::move(rank.model));
    return models;
  }

  absl::Status RunRank(Rank* rank, Communicator* communicator,
                       const Work& work) {
    ParameterExchange::Options options;
    options.reducer.gate = schedule_->gate(rank->index);
    options.reducer.timeout = kTimeout;
    options.plan = plan_;
    options.skip_non_finite = skip_non_finite_;
    options.same_at_start = same_at_start_;
    Model* const model = &rank->model;
    // Rank 0's values count, unless they are declared the same.
    model->wide[0] += rank->index;
    options.step_optimizer = [model] { return model->Step(); };
    COXSWAIN_ASSIGN_OR_RETURN(
        rank->exchange,
        ParameterExchange::Create(options, model->parameters(), communicator));
    return work(*rank);
  }

  void MakeSchedule(int size) {
    schedule_ = std::make_unique<schedule::FakeSchedule>(size, plan_);
  }

  // That all ranks ended well, and have taken so many steps to this value.
  void ExpectAll(const std::vector<Model>& models, int steps, double value) {
    for (size_t i = 0; i < models.size(); ++i) {
      EXPECT_OK(statuses_[i]);
      EXPECT_EQ(models[i].steps, steps);
      EXPECT_THAT(models[i].wide, Each(DoubleNear(value, 1e-12)));
      EXPECT_THAT(models[i].narrow,
                  Each(FloatNear(static_cast<float>(value), 1e-4f)));
    }
  }

  schedule::Plan plan_ = [] {
    schedule::Plan plan;
    plan.version = 1;
    plan.hook = "allreduce";
    return plan;
  }();
  bool skip_non_finite_ = false;
  bool same_at_start_ = false;
  std::unique_ptr<schedule::FakeSchedule> schedule_;
  std::vector<absl::Status> statuses_;
};

TEST_F(ParameterExchangeTest, AveragesOverRanksAndMicroBatches) {
  plan_.accumulation_steps = 2;
  const auto models = Run(3, [](Rank& rank) {
    absl::Status status;
    for (int i = 0; i < 4 && status.ok(); ++i) {
      status = rank.Train(rank.index + 3 * i);
      EXPECT_EQ(rank.model.steps, (i + 1) / 2) << i;
    }
    return status;
  });
  // (0 + 1 + 2 + 3 + 4 + 5) / 6, and then (6 + ... + 11) / 6.
  ExpectAll(models, 2, 10 - 2.5 - 8.5);
}

TEST_F(ParameterExchangeTest, WhatIsTheSameAtTheStartIsNotCopied) {
  const auto nothing = [](Rank&) { return absl::OkStatus(); };
  const auto copied = Run(2, nothing);
  EXPECT_EQ(copied[1].wide[0], copied[0].wide[0]);
  schedule_.reset();
  same_at_start_ = true;
  const auto kept = Run(2, nothing);
  EXPECT_EQ(kept[1].wide[0], kept[0].wide[0] + 1);
}

TEST_F(ParameterExchangeTest, AShortWindowIsDividedByWhatItHas) {
  plan_.accumulation_steps = 4;
  const auto models = Run(2, [](Rank& rank) -> absl::Status {
    for (int i = 0; i < 3; ++i) {
      COXSWAIN_RETURN_IF_ERROR(rank.Train(rank.index + 2 * i));
    }
    COXSWAIN_ASSIGN_OR_RETURN(const bool rest, rank.exchange->Flush());
    EXPECT_TRUE(rest);
    COXSWAIN_RETURN_IF_ERROR(rank.exchange->StepOptimizer());
    // And one whose end is said with its last micro-batch.
    COXSWAIN_RETURN_IF_ERROR(rank.Train(rank.index));
    Accumulator::Begin last;
    last.end_of_data = true;
    COXSWAIN_RETURN_IF_ERROR(rank.Train(rank.index, last));
    EXPECT_TRUE(rank.exchange->taken());
    COXSWAIN_ASSIGN_OR_RETURN(const bool more, rank.exchange->Flush());
    EXPECT_FALSE(more);
    return absl::OkStatus();
  });
  ExpectAll(models, 2, 10 - 2.5 - 0.5);
}

TEST_F(ParameterExchangeTest, ADroppedWindowLeavesNothingBehind) {
  plan_.accumulation_steps = 2;
  plan_.terms.tail = schedule::TailPolicy::kDrop;
  const auto models = Run(2, [](Rank& rank) -> absl::Status {
    COXSWAIN_RETURN_IF_ERROR(rank.Train(100));
    COXSWAIN_ASSIGN_OR_RETURN(const bool rest, rank.exchange->Flush());
    EXPECT_FALSE(rest);
    COXSWAIN_RETURN_IF_ERROR(rank.Train(1));
    return rank.Train(3);
  });
  ExpectAll(models, 1, 8);
}

TEST_F(ParameterExchangeTest, TheScaleFollowsAPlanThatChanges) {
  MakeSchedule(2);
  schedule::Plan more = plan_;
  more.version = 2;
  more.accumulation_steps = 4;
  schedule_->ChangePlanAt(0, more);
  const auto models = Run(2, [](Rank& rank) {
    absl::Status status;
    for (int i = 0; i < 5 && status.ok(); ++i) status = rank.Train(1);
    EXPECT_EQ(rank.exchange->plan().accumulation_steps, 4);
    return status;
  });
  // A window of one and one of four, each with the mean 1.
  ExpectAll(models, 2, 8);
}

TEST_F(ParameterExchangeTest, WeightsCount) {
  plan_.accumulation_steps = 2;
  plan_.terms.weighting = schedule::Weighting::kSamples;
  const auto models = Run(2, [](Rank& rank) -> absl::Status {
    Accumulator::Begin begin;
    begin.weight = rank.index == 0 ? 0 : 3;  // of rank 0 none
    COXSWAIN_RETURN_IF_ERROR(rank.Train(1, begin));
    begin.weight = rank.index == 0 ? 5 : 2;
    return rank.Train(3, begin);
  });
  ExpectAll(models, 1, 10 - (3 * 1 + 7 * 3) / 10.0);
}

TEST_F(ParameterExchangeTest, ExchangesEachMicroBatchIfThePlanSaysSo) {
  plan_.accumulation_steps = 3;
  plan_.terms.sync_each_batch = true;
  MakeSchedule(2);
  schedule_->SkipAt(4, "the second of the second window");
  const auto models = Run(2, [](Rank& rank) -> absl::Status {
    for (int i = 0; i < 9; ++i) {
      COXSWAIN_RETURN_IF_ERROR(rank.Train(rank.index + 2 * (i % 3)));
      EXPECT_EQ(rank.exchange->decided(), i + 1);
      if (i != 5) continue;
      EXPECT_FALSE(rank.exchange->taken());
      EXPECT_THAT(rank.exchange->decision().reason, HasSubstr("second window"));
    }
    return absl::OkStatus();
  });
  ExpectAll(models, 2, 10 - 2.5 - 2.5);
}

TEST_F(ParameterExchangeTest, RanksMayRunOutOfData) {
  plan_.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  const auto models = Run(2, [](Rank& rank) -> absl::Status {
    for (int i = 0; i <= rank.index; ++i) {
      COXSWAIN_RETURN_IF_ERROR(rank.Train(2 + 2 * rank.index));
    }
    COXSWAIN_ASSIGN_OR_RETURN(const bool rest, rank.exchange->Flush());
    EXPECT_FALSE(rest);
    int more_steps = 0;
    while (true) {
      COXSWAIN_ASSIGN_OR_RETURN(const bool more,
                                rank.exchange->StepWithoutData());
      if (!more) break;
      ++more_steps;
      COXSWAIN_RETURN_IF_ERROR(rank.exchange->StepOptimizer());
    }
    EXPECT_EQ(more_steps, 1 - rank.index);
    return absl::OkStatus();
  });
  // Both, and then rank 1 alone.
  ExpectAll(models, 2, 10 - 3 - 4);
}

TEST_F(ParameterExchangeTest, AStepThatAllSkipTakesNone) {
  MakeSchedule(2);
  schedule_->SkipAt(1, "an operator");
  const auto models = Run(2, [](Rank& rank) -> absl::Status {
    for (int i = 0; i < 3; ++i) {
      COXSWAIN_RETURN_IF_ERROR(rank.Train(1));
      EXPECT_EQ(rank.exchange->taken(), i != 1);
    }
    return absl::OkStatus();
  });
  ExpectAll(models, 2, 8);
}

TEST_F(ParameterExchangeTest, AveragesThatAreNotFiniteAreSkipped) {
  skip_non_finite_ = true;
  const auto models = Run(2, [](Rank& rank) -> absl::Status {
    const bool bad = rank.index == 1;
    COXSWAIN_RETURN_IF_ERROR(
        rank.Train(bad ? std::numeric_limits<double>::infinity() : 1));
    EXPECT_FALSE(rank.exchange->taken());
    EXPECT_THAT(rank.exchange->decision().reason,
                AllOf(HasSubstr("not finite"), HasSubstr("wide")));
    return rank.Train(1);
  });
  ExpectAll(models, 1, 9);
}

TEST_F(ParameterExchangeTest, FollowsAPlanToAHookWithAnAverager) {
  MakeSchedule(2);
  schedule::Plan local = plan_;
  local.version = 2;
  local.hook = "post_local_sgd(start_step=3,period=8)";
  local.terms.hook_state = schedule::HookStatePolicy::kReset;
  schedule_->ChangePlanAt(0, local);
  const auto models = Run(2, [](Rank& rank) -> absl::Status {
    for (int i = 0; i < 6; ++i) {
      COXSWAIN_RETURN_IF_ERROR(rank.Train(rank.index));
    }
    EXPECT_THAT(rank.exchange->hook().spec(), HasSubstr("post_local_sgd"));
    EXPECT_NE(rank.model.wide[0], 7) << "the ranks are apart";
    return rank.exchange->AverageParameters();
  });
  ExpectAll(models, 6, 10 - 6 * 0.5);
}

// A program counts a step by its return.
TEST_F(ParameterExchangeTest, WhatFailsAfterAStepComesBackFromTheNextCall) {
  MakeSchedule(1);
  schedule::Plan unknown = plan_;
  unknown.version = 2;
  unknown.hook = "no_such_hook";
  schedule_->ChangePlanAt(0, unknown);
  const auto models = Run(1, [](Rank& rank) -> absl::Status {
    EXPECT_OK(rank.Train(1));
    EXPECT_TRUE(rank.exchange->taken());
    EXPECT_FALSE(rank.exchange->status().ok());
    return rank.Train(1);
  });
  EXPECT_EQ(models[0].steps, 1);
  EXPECT_THAT(statuses_[0], StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("no_such_hook")));
}

TEST_F(ParameterExchangeTest, AGradientMayBeReadyBeforeTheOthers) {
  const auto models = Run(2, [](Rank& rank) -> absl::Status {
    COXSWAIN_RETURN_IF_ERROR(rank.exchange->Begin({}).status());
    rank.model.Fill(1 + 2 * rank.index);
    COXSWAIN_RETURN_IF_ERROR(rank.exchange->Ready(1));
    COXSWAIN_RETURN_IF_ERROR(rank.exchange->End());
    return rank.exchange->StepOptimizer();
  });
  ExpectAll(models, 1, 8);
}

TEST_F(ParameterExchangeTest, WrongUseIsAnErrorThatSaysSo) {
  Run(1, [](Rank& rank) -> absl::Status {
    COXSWAIN_RETURN_IF_ERROR(rank.exchange->Begin({}).status());
    COXSWAIN_RETURN_IF_ERROR(rank.exchange->Ready(0));
    return rank.exchange->Ready(0);
  });
  EXPECT_THAT(statuses_[0],
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("\"wide\""), HasSubstr("twice"))));
  schedule_.reset();
  Run(1, [](Rank& rank) { return rank.exchange->Ready(0); });
  EXPECT_THAT(statuses_[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("GradientReady")));
  schedule_.reset();
  Run(1, [](Rank& rank) -> absl::Status {
    COXSWAIN_RETURN_IF_ERROR(rank.exchange->Begin({}).status());
    return rank.exchange->Begin({}).status();
  });
  EXPECT_THAT(statuses_[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("within another one")));
}

}  // namespace
}  // namespace coxswain
