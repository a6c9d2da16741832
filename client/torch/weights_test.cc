// What windows average: weights, tails, exchanges in each micro-batch, ranks
// with different amounts of data. Always compared with one process.

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"
#include "schedule/fake_step_gate.h"

namespace coxswain::torch::weights_test {
namespace {

using testing::HasSubstr;
using ::torch::Tensor;

using Names = std::vector<std::string>;

// Declares a micro-batch whose loss is the mean of `x` times a.
absl::Status TrainOn(DistributedDataParallel& ddp, Weights& model, double x,
                     const Accumulator::Begin& begin = {1, false}) {
  const MicroBatch micro = ddp.Accumulate(begin);
  return ddp.Backward(model.Use({"a"}, x) * micro.loss_scale);
}

// ---- weights ----

::torch::nn::Linear Model(::torch::ScalarType type) {
  // Ranks are threads here, and share libtorch's generator.
  static Mutex generator;
  const MutexLock lock(&generator);
  ::torch::manual_seed(5);
  ::torch::nn::Linear linear(6, 3);
  linear->to(type);
  return linear;
}

// Returns the tokens [begin, end) of an endless text: the sum of their losses.
Tensor Loss(::torch::nn::Linear& model, int64_t begin, int64_t end) {
  const auto type = model->weight.scalar_type();
  const Tensor number = ::torch::arange(begin, end, type).view({-1, 1});
  const Tensor x = ::torch::sin(number + ::torch::arange(6, type) * 7.1);
  return (model->forward(x) - ::torch::cos(number)).square().sum();
}

// Tokens by rank and micro-batch of two windows, which are as uneven as text.
const std::vector<std::vector<int>> kTokens = {{3, 17, 5, 1, 1, 40},
                                               {11, 2, 8, 23, 9, 4}};

class TokensTest
    : public testing::TestWithParam<std::tuple<::torch::ScalarType, bool>> {};
INSTANTIATE_TEST_SUITE_P(TypesAndViews, TokensTest,
                         testing::Combine(testing::Values(::torch::kFloat32,
                                                          ::torch::kFloat64),
                                          testing::Bool()));

TEST_P(TokensTest, AWindowIsOneBigBatch) {
  const auto [type, view] = GetParam();
  OnRanks(2, [type = type, view = view](const TestRank& rank) {
    schedule::Terms terms;
    terms.weighting = schedule::Weighting::kTokens;
    auto options = Following(PlanOf(3, terms));
    options.gradient_as_bucket_view = view;
    auto model = Model(type);
    auto ddp = Wrap(rank, model.ptr(), options);
    auto alone = Model(type);
    int64_t next = 0;
    for (int window = 0; window < 2; ++window) {
      int64_t total = 0;
      Tensor sum = ::torch::zeros({}, type);
      for (int micro = 3 * window; micro < 3 * window + 3; ++micro) {
        for (int r = 0; r < 2; ++r) {
          const int tokens = kTokens[r][micro];
          sum = sum + Loss(alone, next, next + tokens);
          if (r == rank.index) {
            const MicroBatch now =
                ddp->Accumulate({static_cast<double>(tokens), false});
            EXPECT_EQ(now.sync, micro % 3 == 2);
            ASSERT_OK(ddp->Backward(Loss(model, next, next + tokens) / tokens *
                                    now.loss_scale));
          }
          next += tokens;
          total += tokens;
        }
      }
      (sum / static_cast<double>(total)).backward();
      const double tolerance = type == ::torch::kFloat32 ? 1e-6 : 1e-12;
      for (size_t i = 0; i < 2; ++i) {
        const Tensor ought = alone->parameters()[i].grad();
        const Tensor is = model->parameters()[i].grad();
        EXPECT_LT((is - ought).norm().item<double>(),
                  tolerance * ought.norm().item<double>());
      }
      model->zero_grad();
      alone->zero_grad();
    }
  });
}

TEST(WeightsTest, TicketsHaveWhatWasSummedUp) {
  schedule::Terms terms;
  terms.weighting = schedule::Weighting::kTokens;
  const schedule::Plan plan = PlanOf(2, terms);
  schedule::FakeSchedule schedule(2, plan);
  OnRanks(2, [&](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Following(plan, schedule.gate(rank.index)));
    ASSERT_OK(TrainOn(*ddp, *model, 1, {10, false}));
    ASSERT_OK(TrainOn(*ddp, *model, 4, {5, false}));
    const auto tickets = schedule.tickets(rank.index);
    ASSERT_EQ(tickets.size(), 1u);
    EXPECT_EQ(tickets[0].weight, 15);
    EXPECT_EQ(tickets[0].micro_batches, 2);
    EXPECT_EQ(tickets[0].plan_version, 1);
    EXPECT_EQ(model->Gradient("a"), 2);  // of 1 (10 times) and 4 (5 times)
  });
}

// A mean over nothing.
absl::Status TrainOnNothing(DistributedDataParallel& ddp, Weights& model) {
  const double nan = std::nan("");
  return TrainOn(ddp, model, nan, {0, false});
}

class EmptyTest : public testing::TestWithParam<std::tuple<bool, bool, bool>> {
 protected:
  static DistributedDataParallelOptions Options(
      const schedule::Plan& plan, schedule::StepGate* gate = nullptr) {
    auto options = Following(plan, gate);
    const auto [view, static_graph, unused] = GetParam();
    options.gradient_as_bucket_view = view;
    options.static_graph = static_graph;
    options.reducer.find_unused_parameters = unused;
    return options;
  }
  static schedule::Plan Plan(
      int accumulation_steps,
      schedule::UnevenData uneven = schedule::UnevenData::kRefuse) {
    schedule::Terms terms;
    terms.weighting = schedule::Weighting::kTokens;
    terms.uneven_data = uneven;
    return PlanOf(accumulation_steps, terms);
  }
};
INSTANTIATE_TEST_SUITE_P(ViewsAndGraphs, EmptyTest,
                         testing::Combine(testing::Bool(), testing::Bool(),
                                          testing::Bool()));

TEST_P(EmptyTest, AMicroBatchOfWeight0CountsForNothing) {
  const schedule::Plan plan = Plan(2);
  schedule::FakeSchedule schedule(2, plan);
  OnRanks(2, [&](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Options(plan, schedule.gate(rank.index)));
    ::torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.5);
    const auto train = [&](double x, double weight) {
      return weight == 0 ? TrainOnNothing(*ddp, *model)
                         : TrainOn(*ddp, *model, x, {weight, false});
    };
    const auto step = [&](double average, double value) {
      EXPECT_FLOAT_EQ(model->Gradient("a"), average);
      ASSERT_OK_AND_ASSIGN(const bool stepped, ddp->StepOptimizer(optimizer));
      EXPECT_TRUE(stepped);
      EXPECT_FLOAT_EQ(model->weight("a")[0].item<double>(), value);
    };
    const bool first = rank.index == 0;
    // At the window's end on one rank, all of it on the other.
    ASSERT_OK(train(4, first ? 10 : 0));
    ASSERT_OK(train(9, 0));
    step(4, -1);
    // At its beginning.
    ASSERT_OK(train(5, 0));
    ASSERT_OK(train(first ? 2 : 6, first ? 1 : 3));
    step(5, -3.5);
    // On all ranks: a step that is skipped.
    ASSERT_OK(train(1, 0));
    ASSERT_OK(train(1, 0));
    EXPECT_TRUE(ddp->skipped());
    EXPECT_THAT(ddp->decision().reason, HasSubstr("had weight 0"));
    ASSERT_OK_AND_ASSIGN(const bool stepped, ddp->StepOptimizer(optimizer));
    EXPECT_FALSE(stepped);
    EXPECT_EQ(ddp->hook().step(), 2);
    // And on.
    ASSERT_OK(train(1, 2));
    ASSERT_OK(train(1, 2));
    step(1, -4);
    ASSERT_OK_AND_ASSIGN(const auto position, ddp->accumulator().Position());
    EXPECT_EQ(position.at("train"), 4);
    for (const schedule::Ticket& ticket : schedule.tickets(rank.index)) {
      EXPECT_EQ(ticket.micro_batches, 2);
    }
  });
}

TEST_P(EmptyTest, ItIsNotTheEndOfTheData) {
  for (const auto uneven :
       {schedule::UnevenData::kWaitForAll, schedule::UnevenData::kEndAtFirst}) {
    OnRanks(2, [&](const TestRank& rank) {
      auto model = std::make_shared<Weights>(Names{"a"});
      auto ddp = Wrap(rank, model, Options(Plan(1, uneven)));
      ::torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.5);
      if (rank.index == 0) {
        ASSERT_OK(TrainOn(*ddp, *model, 3, {2, false}));
      } else {
        ASSERT_OK(TrainOnNothing(*ddp, *model));
      }
      EXPECT_FALSE(ddp->ended());
      EXPECT_EQ(model->Gradient("a"), 3);
      ASSERT_OK_AND_ASSIGN(bool stepped, ddp->StepOptimizer(optimizer));
      EXPECT_TRUE(stepped);
      ASSERT_OK(TrainOnNothing(*ddp, *model));
      EXPECT_FALSE(ddp->ended());
      ASSERT_OK_AND_ASSIGN(stepped, ddp->StepOptimizer(optimizer));
      EXPECT_FALSE(stepped);
    });
  }
}

// A rank that is out of data waits for those whose data has weight 0.
TEST_P(EmptyTest, PeersWithoutDataGoOn) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp =
        Wrap(rank, model, Options(Plan(1, schedule::UnevenData::kWaitForAll)));
    ::torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.5);
    bool more = true;
    if (rank.index == 0) {
      ASSERT_OK(TrainOnNothing(*ddp, *model));
    } else {
      ASSERT_OK_AND_ASSIGN(more, ddp->StepWithoutData());
      EXPECT_TRUE(more);
    }
    ASSERT_OK_AND_ASSIGN(bool stepped, ddp->StepOptimizer(optimizer));
    EXPECT_FALSE(stepped);
    if (rank.index == 0) {
      ASSERT_OK(TrainOn(*ddp, *model, 3, {2, false}));
    } else {
      ASSERT_OK_AND_ASSIGN(more, ddp->StepWithoutData());
      EXPECT_TRUE(more);
    }
    EXPECT_EQ(model->Gradient("a"), 3);
    ASSERT_OK_AND_ASSIGN(stepped, ddp->StepOptimizer(optimizer));
    EXPECT_TRUE(stepped);
    ASSERT_OK_AND_ASSIGN(more, ddp->StepWithoutData());
    EXPECT_FALSE(more);
  });
}

TEST_P(EmptyTest, ACallerThatRunsBackwardLeavesItOut) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Options(Plan(2)));
    for (int window = 0; window < 2; ++window) {
      ddp->Accumulate({3, false});
      model->Use({"a"}, 4.0 / 2).backward();
      const MicroBatch micro = ddp->Accumulate({0, false});
      EXPECT_TRUE(micro.empty);
      ASSERT_OK(ddp->Synchronize());
      ASSERT_OK(ddp->FinishStep());
      EXPECT_FLOAT_EQ(model->Gradient("a"), 4);
      model->zero_grad();
    }
  });
}

// ---- the end of the data ----

// Whether a header exchange has the weights.
class TailTest : public testing::TestWithParam<bool> {
 protected:
  static DistributedDataParallelOptions Ending(schedule::TailPolicy tail) {
    schedule::Terms terms;
    terms.tail = tail;
    if (GetParam()) terms.weighting = schedule::Weighting::kSamples;
    return Following(PlanOf(4, terms));
  }
};
INSTANTIATE_TEST_SUITE_P(MeanAndSamples, TailTest, testing::Bool());

TEST_P(TailTest, FlushAveragesWhatIsThere) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Ending(schedule::TailPolicy::kFlush));
    ASSERT_OK(TrainOn(*ddp, *model, 2 + rank.index));
    ASSERT_OK(TrainOn(*ddp, *model, 6));
    ASSERT_OK_AND_ASSIGN(const bool more, ddp->Flush());
    EXPECT_TRUE(more);
    EXPECT_EQ(model->Gradient("a"), (2.0 + 3 + 6 + 6) / 4);
    EXPECT_EQ(ddp->hook().step(), 1);
  });
}

TEST_P(TailTest, AMicroBatchMayBeDeclaredTheLast) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Ending(schedule::TailPolicy::kFlush));
    ASSERT_OK(TrainOn(*ddp, *model, 1));
    ASSERT_OK(TrainOn(*ddp, *model, 3));
    ASSERT_OK(TrainOn(*ddp, *model, 8 + 6 * rank.index, {1, true}));
    EXPECT_EQ(ddp->hook().step(), 1);
    EXPECT_FLOAT_EQ(model->Gradient("a"), (1 + 3 + 11) / 3.0);
    model->zero_grad();
    // The next window is a whole one.
    ASSERT_OK(ddp->BeginEpoch(4));
    for (int i = 0; i < 4; ++i) ASSERT_OK(TrainOn(*ddp, *model, i));
    EXPECT_EQ(model->Gradient("a"), 1.5);
  });
}

TEST_P(TailTest, DropForgetsIt) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Ending(schedule::TailPolicy::kDrop));
    ASSERT_OK(TrainOn(*ddp, *model, 2));
    ASSERT_OK_AND_ASSIGN(const bool more, ddp->Flush());
    EXPECT_FALSE(more);
    EXPECT_EQ(model->Gradient("a"), 0);
    EXPECT_EQ(ddp->hook().step(), 0);
    for (int i = 0; i < 4; ++i) ASSERT_OK(TrainOn(*ddp, *model, i));
    EXPECT_EQ(model->Gradient("a"), 1.5);
  });
}

TEST_P(TailTest, DropForgetsItWhereTheLengthIsKnownToo) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto options = Ending(schedule::TailPolicy::kDrop);
    options.plan->accumulation_steps = 2;
    auto ddp = Wrap(rank, model, options);
    ::torch::optim::SGD optimizer(model->parameters(), /*lr=*/0);
    for (int epoch = 0; epoch < 2; ++epoch) {
      ASSERT_OK(ddp->BeginEpoch(5));
      for (int i = 0; i < 5; ++i) {
        ASSERT_OK(TrainOn(*ddp, *model, i));
        if (i % 2 == 0) continue;
        EXPECT_EQ(model->Gradient("a"), i - 0.5);
        ASSERT_OK(ddp->StepOptimizer(optimizer));
      }
      EXPECT_GT(model->Gradient("a"), 0);
      ASSERT_OK_AND_ASSIGN(const bool more, ddp->Flush());
      EXPECT_FALSE(more);
      EXPECT_EQ(model->Gradient("a"), 0);
      EXPECT_EQ(ddp->hook().step(), 2 * (epoch + 1));
    }
  });
}

TEST_P(TailTest, CarryGoesOnInTheNextEpoch) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Ending(schedule::TailPolicy::kCarry));
    ASSERT_OK(ddp->BeginEpoch(3));
    for (int i = 0; i < 3; ++i) ASSERT_OK(TrainOn(*ddp, *model, i));
    ASSERT_OK_AND_ASSIGN(const bool more, ddp->Flush());
    EXPECT_FALSE(more);
    EXPECT_EQ(ddp->hook().step(), 0);
    ASSERT_OK(ddp->BeginEpoch(3));
    ASSERT_OK(TrainOn(*ddp, *model, 3));
    EXPECT_EQ(ddp->hook().step(), 1);
    EXPECT_EQ(model->Gradient("a"), 1.5);
  });
}

TEST(MaxStepsTest, EndTheTraining) {
  OnRanks(2, [](const TestRank& rank) {
    schedule::Terms terms;
    terms.max_steps = 2;
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Following(PlanOf(2, terms)));
    int batches = 0;
    for (; !ddp->finished(); ++batches) ASSERT_OK(TrainOn(*ddp, *model, 1));
    EXPECT_EQ(batches, 4);
    EXPECT_THAT(
        TrainOn(*ddp, *model, 1),
        StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("max_steps")));
  });
}

// ---- an exchange in each micro-batch ----

schedule::Plan EachBatch(int accumulation_steps) {
  schedule::Terms terms;
  terms.sync_each_batch = true;
  return PlanOf(accumulation_steps, terms);
}

// Returns what a hook that keeps back fractions makes of one exchange after
// another: the averages of whole numbers.
std::vector<double> Exchanges(const std::vector<std::vector<double>>& by_rank) {
  std::vector<double> errors(by_rank.size());
  std::vector<double> averages;
  for (size_t i = 0; i < by_rank[0].size(); ++i) {
    double sum = 0;
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      const double value = by_rank[rank][i] + errors[rank];
      errors[rank] = value - std::floor(value);
      sum += std::floor(value);
    }
    averages.push_back(sum / static_cast<double>(by_rank.size()));
  }
  return averages;
}

// A hook that is exact, or one that keeps back what it does not send.
class EachBatchTest : public testing::TestWithParam<std::tuple<bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(HooksAndViews, EachBatchTest,
                         testing::Combine(testing::Bool(), testing::Bool()));

TEST_P(EachBatchTest, EachExchangeCarriesOneMicroBatch) {
  const auto [whole, view] = GetParam();
  // Of the micro-batches of two windows, divided by the window's length.
  const std::vector<std::vector<double>> values = {
      {4.75, 2.5, 3.5, 4.75, 0.0, 1.75}, {5.0, 1.25, 4.25, 4.5, 1.25, 0.5}};
  std::vector<double> averages = Exchanges(values);
  for (size_t i = 0; i < averages.size() && !whole; ++i) {
    averages[i] = (values[0][i] + values[1][i]) / 2;
  }
  OnRanks(2, [&, whole = whole, view = view](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto options = Following(EachBatch(3));
    options.plan->hook = whole ? "whole" : "average";
    options.gradient_as_bucket_view = view;
    options.reducer.rebuild = false;
    ASSERT_OK_AND_ASSIGN(auto ddp,
                         DistributedDataParallel::Create(
                             model, rank.communicator,
                             std::make_unique<AverageHook>(whole), options));
    double sum = 0;
    for (size_t i = 0; i < 6; ++i) {
      const MicroBatch micro = ddp->Accumulate();
      EXPECT_TRUE(micro.exchange);
      EXPECT_EQ(micro.sync, i % 3 == 2);
      ASSERT_OK(ddp->Backward(model->Use({"a"}, values[rank.index][i])));
      EXPECT_EQ(ddp->reducer().totals().gradient_bytes,
                static_cast<int64_t>(8 * (i + 1)));
      sum += averages[i];
      EXPECT_EQ(model->Gradient("a"), sum) << i;
      EXPECT_EQ(ddp->hook().step(), static_cast<int64_t>(i) + 1);
      if (!micro.sync) continue;
      model->zero_grad();
      sum = 0;
    }
  });
}

TEST(EachBatchTest, IsAsAccumulationForAHookThatLosesNothing) {
  OnRanks(2, [](const TestRank& rank) {
    std::vector<Tensor> gradients;
    for (const schedule::Plan& plan : {PlanOf(3), EachBatch(3)}) {
      auto model = Model(::torch::kFloat64);
      auto ddp = Wrap(rank, model.ptr(), Following(plan));
      for (int micro = 0; micro < 3; ++micro) {
        const int64_t begin = 10 * (2 * micro + rank.index);
        const MicroBatch now = ddp->Accumulate();
        ASSERT_OK(
            ddp->Backward(Loss(model, begin, begin + 10) * now.loss_scale));
      }
      gradients.push_back(model->weight.grad().clone());
    }
    EXPECT_LT((gradients[0] - gradients[1]).norm().item<double>(),
              1e-14 * gradients[0].norm().item<double>());
  });
}

TEST(EachBatchTest, ASkippedExchangeSkipsItsWindowOnAllRanks) {
  const schedule::Plan plan = EachBatch(3);
  schedule::FakeSchedule schedule(2, plan);
  schedule.SkipAt(1, "rank 1 saw an odd loss");
  // A plan that comes in the middle of a window waits for its end.
  schedule::Plan next = EachBatch(2);
  next.version = 2;
  schedule.ChangePlanAt(3, next);
  OnRanks(2, [&](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Following(plan, schedule.gate(rank.index)));
    ::torch::optim::SGD optimizer(model->parameters(), /*lr=*/1);
    for (const bool skipped : {true, false}) {
      for (int micro = 0; micro < 3; ++micro) {
        EXPECT_EQ(ddp->plan().version, 1);
        ASSERT_OK(TrainOn(*ddp, *model, 3));
        EXPECT_EQ(ddp->skipped(), skipped && micro > 0);
      }
      EXPECT_EQ(model->Gradient("a"), skipped ? 0 : 3);
      ASSERT_OK_AND_ASSIGN(const bool stepped, ddp->StepOptimizer(optimizer));
      EXPECT_EQ(stepped, !skipped);
    }
    EXPECT_EQ(ddp->hook().step(), 5);
    EXPECT_EQ(ddp->plan().version, 2);
    const auto tickets = schedule.tickets(rank.index);
    ASSERT_EQ(tickets.size(), 6u);
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(tickets[i].step, static_cast<int64_t>(i) / 3);
      EXPECT_EQ(tickets[i].micro, static_cast<int>(i) % 3);
      EXPECT_EQ(tickets[i].micro_batches, 1);
    }
  });
}

TEST(EachBatchTest, AShortWindowHasItsOwnDivisor) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Following(EachBatch(4)));
    ::torch::optim::SGD optimizer(model->parameters(), /*lr=*/1);
    ASSERT_OK(TrainOn(*ddp, *model, 2));
    ASSERT_OK(TrainOn(*ddp, *model, 6));
    EXPECT_THAT(ddp->StepOptimizer(optimizer),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("have not been summed up")));
    // Its end was in no exchange, so nothing has decided a step by it.
    EXPECT_THAT(ddp->Flush(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr("set end_of_data with")));
    // Nothing has happened yet.
    ASSERT_OK(TrainOn(*ddp, *model, 10, {1, true}));
    EXPECT_EQ(model->Gradient("a"), 6);
    ASSERT_OK_AND_ASSIGN(const bool stepped, ddp->StepOptimizer(optimizer));
    EXPECT_TRUE(stepped);
    ASSERT_OK(ddp->BeginEpoch(2));
    ASSERT_OK(TrainOn(*ddp, *model, 3));
    ASSERT_OK(TrainOn(*ddp, *model, 7));
    EXPECT_EQ(model->Gradient("a"), 5);
    ASSERT_OK_AND_ASSIGN(const bool more, ddp->Flush());
    EXPECT_FALSE(more);
    EXPECT_EQ(ddp->hook().step(), 5);
  });
}

// ---- ranks with different amounts of data ----

class UnevenTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(CopyAndView, UnevenTest, testing::Bool());

TEST_P(UnevenTest, AllRanksLeaveTheEpochTogether) {
  schedule::Terms terms;
  terms.uneven_data = schedule::UnevenData::kWaitForAll;
  const schedule::Plan plan = PlanOf(2, terms);
  schedule::FakeSchedule schedule(3, plan);
  // Rank r has 2 r + 1 micro-batches, twice.
  OnRanks(3, [&](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto options = Following(plan, schedule.gate(rank.index));
    options.gradient_as_bucket_view = GetParam();
    auto ddp = Wrap(rank, model, options);
    ::torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.5);
    for (int epoch = 1; epoch <= 2; ++epoch) {
      std::vector<double> averages;
      ASSERT_OK(ddp->BeginEpoch());
      const auto step = [&] {
        averages.push_back(model->Gradient("a"));
        ASSERT_OK_AND_ASSIGN(const bool stepped, ddp->StepOptimizer(optimizer));
        EXPECT_TRUE(stepped);
      };
      for (int i = 0; i <= 2 * rank.index; ++i) {
        ASSERT_OK(TrainOn(*ddp, *model, 6 * (rank.index + 1),
                          {1, i == 2 * rank.index}));
        if (i % 2 == 1 || i == 2 * rank.index) step();
      }
      while (true) {
        ASSERT_OK_AND_ASSIGN(const bool more, ddp->StepWithoutData());
        if (!more) break;
        step();
      }
      // One of 6, two of 12 and 18; one of 12 and two of 18; one of 18.
      ASSERT_EQ(averages.size(), 3u);
      EXPECT_FLOAT_EQ(averages[0], (6.0 + 24 + 36) / 5);
      EXPECT_FLOAT_EQ(averages[1], (12.0 + 36) / 3);
      EXPECT_FLOAT_EQ(averages[2], 18);
      ASSERT_OK_AND_ASSIGN(const auto position, ddp->accumulator().Position());
      EXPECT_EQ(position.at("train"), 3 * epoch);
      EXPECT_FALSE(ddp->ended());
    }
  });
  for (int rank = 0; rank < 3; ++rank) {
    const auto tickets = schedule.tickets(rank);
    ASSERT_EQ(tickets.size(), 8u);  // with one in each epoch that ends it
    EXPECT_EQ(tickets[2].weight, rank == 2 ? 1 : 0);
    EXPECT_EQ(tickets[2].micro_batches, rank == 2 ? 1 : 0);
    EXPECT_EQ(tickets[3].micro_batches, 0);
  }
}

// As the coordinator counts.
TEST_P(UnevenTest, ARoundInWhichNoRankHasDataIsNoStep) {
  for (const auto uneven :
       {schedule::UnevenData::kWaitForAll, schedule::UnevenData::kEndAtFirst}) {
    schedule::Terms terms;
    terms.uneven_data = uneven;
    OnRanks(2, [&](const TestRank& rank) {
      auto model = std::make_shared<Weights>(Names{"a"});
      auto options = Following(PlanOf(1, terms));
      options.gradient_as_bucket_view = GetParam();
      auto ddp = Wrap(rank, model, options);
      for (int epoch = 1; epoch <= 2; ++epoch) {
        ASSERT_OK(ddp->BeginEpoch(1));
        ASSERT_OK(TrainOn(*ddp, *model, 2));
        ASSERT_OK_AND_ASSIGN(const bool more, ddp->StepWithoutData());
        EXPECT_FALSE(more);
        ASSERT_OK_AND_ASSIGN(const auto position,
                             ddp->accumulator().Position());
        EXPECT_EQ(position.at("train"), epoch);
      }
    });
  }
}

TEST_P(UnevenTest, TheEpochMayEndAtTheFirst) {
  schedule::Terms terms;
  terms.uneven_data = schedule::UnevenData::kEndAtFirst;
  const schedule::Plan plan = PlanOf(2, terms);
  schedule::FakeSchedule schedule(2, plan);
  OnRanks(2, [&](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto options = Following(plan, schedule.gate(rank.index));
    options.gradient_as_bucket_view = GetParam();
    auto ddp = Wrap(rank, model, options);
    ::torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.5);
    for (int epoch = 1; epoch <= 2; ++epoch) {
      int steps = 0;
      const int batches = rank.index == 0 ? 2 : 100;
      ASSERT_OK(ddp->BeginEpoch(batches));
      for (int i = 0; i < batches && !ddp->ended(); ++i) {
        ASSERT_OK(TrainOn(*ddp, *model, 2));
        if (i % 2 == 0) continue;
        ASSERT_OK_AND_ASSIGN(const bool stepped, ddp->StepOptimizer(optimizer));
        if (stepped) ++steps;
      }
      if (!ddp->ended()) {
        ASSERT_OK_AND_ASSIGN(const bool more, ddp->StepWithoutData());
        EXPECT_FALSE(more);
      }
      EXPECT_TRUE(ddp->ended());
      EXPECT_EQ(steps, 1);
      if (rank.index == 1) {
        EXPECT_EQ(model->Gradient("a"), 0);
      }
      EXPECT_EQ(ddp->hook().step(), epoch);
      EXPECT_EQ(model->weight("a")[0].item<double>(), 1 - epoch);
      // All have counted the window that was given up.
      ASSERT_OK_AND_ASSIGN(const auto position, ddp->accumulator().Position());
      EXPECT_EQ(position.at("train"), 2 * epoch);
    }
  });
}

}  // namespace
}  // namespace coxswain::torch::weights_test
