// What a step may be besides the plain one: ranks without data, optimizers that
// step early, buffers, a trace, micro-batches that do not run as declared.

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/comm/held/held_communicator.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"

namespace coxswain::torch::steps_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using ::torch::Tensor;

using Names = std::vector<std::string>;

// ---- uneven inputs ----

class ModesTest : public testing::TestWithParam<bool> {
 protected:
  static DistributedDataParallelOptions Uneven() {
    DistributedDataParallelOptions options = SmallBuckets(GetParam());
    options.reducer.uneven_inputs = true;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(CopyAndView, ModesTest, testing::Bool());

TEST_P(ModesTest, ARankWithoutDataFollowsTheOthers) {
  // Rank r has r + 1 batches, whose gradients are 6, 12, 18.
  OnRanks(3, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a", "b"});
    auto ddp = Wrap(rank, model, Uneven());
    ::torch::optim::SGD optimizer(model->parameters(), 1);
    std::vector<double> averages;
    const auto step = [&] {
      averages.push_back(model->Gradient("a"));
      optimizer.step();
      optimizer.zero_grad();
    };
    for (int batch = 0; batch <= rank.index; ++batch) {
      ASSERT_OK(ddp->Backward(model->Use({"a", "b"}, 6 * (rank.index + 1))));
      step();
    }
    while (true) {
      ASSERT_OK_AND_ASSIGN(const bool more, ddp->StepWithoutData());
      if (!more) break;
      step();
    }
    EXPECT_THAT(averages, ElementsAre(12, 15, 18));
    EXPECT_EQ(model->weight("a")[0].item<double>(), 1 - 12 - 15 - 18);
    EXPECT_EQ(ddp->hook().step(), 3);
    EXPECT_TRUE(ddp->reducer().report().empty);
    // More data may come.
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 2)));
    EXPECT_EQ(ddp->hook().step(), 4);
  });
}

TEST_P(ModesTest, WhatAHookHoldsBackIsNeverWeightedTwice) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    ASSERT_OK_AND_ASSIGN(
        auto ddp, DistributedDataParallel::Create(
                      model, rank.communicator,
                      std::make_unique<AverageHook>(/*whole=*/true), Uneven()));
    // What is left over: 0.75 and 0.5.
    ASSERT_OK(ddp->Backward(model->Use({"a"}, rank.index == 0 ? 3.75 : 2.5)));
    EXPECT_EQ(model->Gradient("a"), 2.5);
    model->zero_grad();
    // Rank 0 alone: 2 * 4.25 + 0.75 = 9.25 of it, and nothing of the 0.5.
    if (rank.index == 0) {
      ASSERT_OK(ddp->Backward(model->Use({"a"}, 4.25)));
    } else {
      ASSERT_OK(ddp->StepWithoutData());
    }
    EXPECT_EQ(model->Gradient("a"), 4.5);
    model->zero_grad();
    if (rank.index == 0) {
      // 2 * 0.25 + 0.25 = 0.75, which is held back.
      ASSERT_OK(ddp->Backward(model->Use({"a"}, 0.25)));
    } else {
      ASSERT_OK(ddp->StepWithoutData());
    }
    EXPECT_EQ(model->Gradient("a"), 0);
  });
}

TEST_P(ModesTest, AWindowIsFlushedBeforeStepsWithoutData) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    DistributedDataParallelOptions options = Uneven();
    options.accumulation_steps = 2;
    auto ddp = Wrap(rank, model, options);
    EXPECT_FALSE(ddp->Accumulate().sync);
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 4) / 2));
    if (rank.index == 0) {
      EXPECT_THAT(ddp->StepWithoutData(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           HasSubstr("by Flush or DropWindow")));
      ASSERT_OK(ddp->Flush());
    } else {
      EXPECT_TRUE(ddp->Accumulate().sync);
      ASSERT_OK(ddp->Backward(model->Use({"a"}, 12) / 2));
    }
    EXPECT_NEAR(model->Gradient("a"), 20.0 / 3, 1e-6);  // of 4, 4 and 12
    ASSERT_OK_AND_ASSIGN(const bool more, ddp->StepWithoutData());
    EXPECT_FALSE(more);
  });
}

TEST_P(ModesTest, WithoutDataUnusedParametersStayAsTheyAre) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a", "kept", "none"});
    DistributedDataParallelOptions options = Uneven();
    options.reducer.find_unused_parameters = true;
    auto ddp = Wrap(rank, model, options);
    ASSERT_OK(ddp->Backward(model->Use({"a", "kept"}, 4)));
    model->weight("a").mutable_grad() = Tensor();
    if (rank.index == 0) {
      ASSERT_OK(ddp->StepWithoutData());
    } else {
      ASSERT_OK(ddp->Backward(model->Use({"a"}, 6)));
    }
    EXPECT_EQ(model->Gradient("a"), 6);
    EXPECT_EQ(model->Gradient("kept"), 4);
    EXPECT_TRUE(std::isnan(model->Gradient("none")));
    ASSERT_OK_AND_ASSIGN(const bool more, ddp->StepWithoutData());
    EXPECT_FALSE(more);
    EXPECT_EQ(model->Gradient("a"), 6);
    EXPECT_EQ(model->Gradient("kept"), 4);
  });
}

// A hook that leaves the ranks apart.
class ApartHook : public AverageHook {
 public:
  bool needs_averager() const override { return true; }
};

class NoAverager : public Averager {
 public:
  std::string spec() const override { return "average"; }
  absl::Status Configure(const std::vector<ParameterSpec>&,
                         const std::vector<Span>&, Communicator&) override {
    return absl::OkStatus();
  }
  absl::Status AfterOptimizerStep(const std::vector<Span>&) override {
    return absl::OkStatus();
  }
  absl::Status AverageNow(const std::vector<Span>&) override {
    return absl::OkStatus();
  }
  int64_t step() const override { return 0; }
  bool averages_next() const override { return false; }
  bool diverged() const override { return false; }
  absl::StatusOr<HookState> SaveState(Communicator&) override {
    return HookState();
  }
  absl::Status LoadState(const HookState&, int, int) override {
    return absl::OkStatus();
  }
};

absl::Status Refusal(const DistributedDataParallelOptions& options,
                     bool averager = false) {
  LoopbackCommunicator communicator;
  std::unique_ptr<Hook> hook = std::make_unique<AverageHook>();
  if (averager) hook = std::make_unique<ApartHook>();
  return DistributedDataParallel::Create(
             std::make_shared<Weights>(Names{"a"}), &communicator,
             std::move(hook), options,
             averager ? std::make_unique<NoAverager>() : nullptr)
      .status();
}

TEST(UnevenInputsTest, AreRefusedWhereRanksStepOnTheirOwn) {
  DistributedDataParallelOptions options = SmallBuckets(true);
  EXPECT_OK(Refusal(options, /*averager=*/true));
  options.reducer.uneven_inputs = true;
  EXPECT_OK(Refusal(options));
  EXPECT_THAT(Refusal(options, /*averager=*/true),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("uneven_inputs does not go with")));
}

TEST(UnevenInputsTest, AStepWithoutDataNeedsTheOption) {
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  auto ddp =
      Wrap(rank, std::make_shared<Weights>(Names{"a"}), SmallBuckets(true));
  EXPECT_THAT(ddp->StepWithoutData(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("needs ReducerOptions::uneven_inputs")));
}

// ---- buffers ----

struct Counting : Weights {
  Counting() : Weights({"a"}) {
    count = register_buffer("count", ::torch::zeros({2, 2}).t());
  }
  Tensor Use(double x) {
    count.add_(x);
    return Weights::Use({"a"}, x);
  }
  double counted() const { return count[1][1].item<double>(); }
  Tensor count;
};

TEST_P(ModesTest, BuffersAreThoseOfTheFirstRankWithData) {
  OnRanks(3, [](const TestRank& rank) {
    auto model = std::make_shared<Counting>();
    auto ddp = Wrap(rank, model, Uneven());
    ASSERT_OK(ddp->Backward(model->Use(1 + rank.index)));
    EXPECT_EQ(model->counted(), 1);
    if (rank.index == 0) {
      ASSERT_OK(ddp->StepWithoutData());
    } else {
      ASSERT_OK(ddp->Backward(model->Use(1 + rank.index)));
    }
    EXPECT_EQ(model->counted(), 3);
    {
      const auto no_sync = ddp->NoSync();
      ASSERT_OK(ddp->Backward(model->Use(rank.index)));
    }
    EXPECT_EQ(model->counted(), 3 + rank.index);
  });
}

TEST(BuffersTest, StayEachRanksOwnWithoutTheOption) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Counting>();
    model->count.fill_(10 * (1 + rank.index));
    DistributedDataParallelOptions options = SmallBuckets(true);
    options.broadcast_buffers = false;
    auto ddp = Wrap(rank, model, options);
    EXPECT_EQ(model->counted(), 10);  // at the start they are rank 0's
    ASSERT_OK(ddp->Backward(model->Use(1 + rank.index)));
    EXPECT_EQ(model->counted(), 11 + rank.index);
  });
}

// ---- overlapped optimizers ----

std::function<std::unique_ptr<::torch::optim::Optimizer>(const Tensor&)>
Momentum() {
  return [](const Tensor& parameter) {
    return std::make_unique<::torch::optim::SGD>(
        std::vector<Tensor>{parameter},
        ::torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  };
}

std::shared_ptr<::torch::nn::SequentialImpl> Perceptron() {
  // Ranks are threads here, and share libtorch's generator.
  static Mutex generator;
  const MutexLock lock(&generator);
  ::torch::manual_seed(3);
  return std::make_shared<::torch::nn::SequentialImpl>(
      ::torch::nn::Linear(8, 16), ::torch::nn::Tanh(),
      ::torch::nn::Linear(16, 4));
}

// Returns the parameters after some steps; overlapped or not.
std::vector<Tensor> Trained(const TestRank& rank, bool view, bool overlapped) {
  auto model = Perceptron();
  DistributedDataParallelOptions options = SmallBuckets(view);
  options.accumulation_steps = 2;
  options.reducer.statistics = true;
  if (overlapped) options.overlapped_optimizer = Momentum();
  auto ddp = Wrap(rank, model, options);
  ::torch::optim::SGD optimizer(
      model->parameters(),
      ::torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  for (int batch = 0; batch < 20; ++batch) {
    const Tensor x = ::torch::arange(32).view({4, 8}).add(
        static_cast<double>(7 * batch + 3 * rank.index));
    const MicroBatch micro = ddp->Accumulate();
    EXPECT_OK(ddp->Backward(model->forward(x.sin()).square().mean()));
    if (!micro.sync) continue;
    EXPECT_GT(ddp->reducer().report().gradient_norm, 0);
    if (!overlapped) {
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const Tensor& parameter : model->parameters()) {
      EXPECT_TRUE(parameter.grad().eq(0).all().item<bool>());
    }
  }
  return model->parameters();
}

TEST_P(ModesTest, OverlappedOptimizersLearnTheSameBits) {
  OnRanks(2, [](const TestRank& rank) {
    const std::vector<Tensor> start = Perceptron()->parameters();
    const std::vector<Tensor> overlapped = Trained(rank, GetParam(), true);
    const std::vector<Tensor> plain = Trained(rank, GetParam(), false);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(::torch::equal(overlapped[i], plain[i])) << i;
      EXPECT_FALSE(::torch::equal(start[i], plain[i])) << i;
    }
  });
}

// Reports each step, and then takes it.
struct Telling : ::torch::optim::SGD {
  Telling(const Tensor& parameter, std::function<void()> what)
      : SGD(std::vector<Tensor>{parameter}, 1), tell(std::move(what)) {}
  Tensor step(LossClosure closure) override {
    tell();
    return SGD::step(closure);
  }
  std::function<void()> tell;
};

TEST(OverlappedOptimizerTest, StepsWhileOtherBucketsTravel) {
  HeldCommunicator held(std::make_unique<LoopbackCommunicator>());
  held.Release(2);  // the broadcast at the start, and the first bucket
  TestRank rank;
  rank.communicator = &held;
  auto model = std::make_shared<Weights>(Names{"a", "b"});
  DistributedDataParallelOptions options = SmallBuckets(true);
  options.reducer.rebuild = false;
  options.reducer.verify = false;
  // The first step is what lets the second bucket through.
  options.overlapped_optimizer = [&](const Tensor& parameter) {
    return std::make_unique<Telling>(parameter, [&] { held.Open(); });
  };
  auto ddp = Wrap(rank, model, options);
  ASSERT_EQ(ddp->reducer().buckets().size(), 2u);
  ASSERT_OK(ddp->Backward(model->Use({"a", "b"}, 2)));
  EXPECT_EQ(model->weight("a")[0].item<double>(), -1);
  EXPECT_EQ(model->weight("b")[0].item<double>(), -1);
}

TEST(OverlappedOptimizerTest, IsRefusedWithWhatNeedsTheWholeStep) {
  DistributedDataParallelOptions options = SmallBuckets(true);
  options.overlapped_optimizer = Momentum();
  EXPECT_OK(Refusal(options));
  const auto refused = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    HasSubstr("overlapped_optimizer does not go with " + what));
  };
  EXPECT_THAT(Refusal(options, /*averager=*/true), refused("an averager"));
  options.reducer.max_norm = 1;
  EXPECT_THAT(Refusal(options), refused("max_norm"));
  options.reducer.max_norm = 0;
  options.reducer.find_unused_parameters = true;
  EXPECT_THAT(Refusal(options), refused("find_unused_parameters"));
}

TEST(OverlappedOptimizerTest, AStepThatWasTakenCannotBeSkipped) {
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  DistributedDataParallelOptions options = SmallBuckets(true);
  options.overlapped_optimizer = Momentum();
  auto model = std::make_shared<Weights>(Names{"a"});
  auto ddp = Wrap(rank, model, options);
  model->Use({"a"}, 1).backward();
  ASSERT_OK(ddp->Synchronize());
  EXPECT_THAT(ddp->FinishStep(false),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cannot be skipped")));
  EXPECT_OK(ddp->FinishStep());
}

TEST(OverlappedOptimizerTest, WhatItThrowsEndsTheStep) {
  struct Broken : ::torch::optim::SGD {
    explicit Broken(const Tensor& parameter)
        : SGD(std::vector<Tensor>{parameter}, 1) {}
    Tensor step(LossClosure) override { throw std::runtime_error("it broke"); }
  };
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  DistributedDataParallelOptions options = SmallBuckets(true);
  options.overlapped_optimizer = [](const Tensor& parameter) {
    return std::make_unique<Broken>(parameter);
  };
  auto model = std::make_shared<Weights>(Names{"a"});
  auto ddp = Wrap(rank, model, options);
  EXPECT_THAT(ddp->Backward(model->Use({"a"}, 1)),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("overlapped optimizer: it broke")));
}

// ---- a commit that waits for the optimizer ----

struct Buffered : Weights {
  Buffered() : Weights({"a"}) {
    count = register_buffer("count", ::torch::zeros({2}));
  }
  Tensor count;
};

class CommitWithOptimizerTest : public testing::TestWithParam<bool> {
 protected:
  static DistributedDataParallelOptions Options() {
    DistributedDataParallelOptions options = SmallBuckets(GetParam());
    options.commit_with_optimizer = true;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(CopyAndView, CommitWithOptimizerTest, testing::Bool());

TEST_P(CommitWithOptimizerTest, TheHookStepsWithTheOptimizer) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Buffered>();
    auto ddp = Wrap(rank, model, Options());
    ::torch::optim::SGD optimizer(model->parameters(), 1);
    for (int step = 0; step < 3; ++step) {
      model->count.fill_(10 * step + rank.index);
      ASSERT_OK(ddp->Backward(model->Use({"a"}, 1 + 2 * rank.index)));
      EXPECT_EQ(model->Gradient("a"), 2);
      EXPECT_EQ(model->count[0].item<double>(), 10 * step)
          << "buffers come before";
      EXPECT_EQ(ddp->hook().step(), step);
      ASSERT_OK(ddp->StepOptimizer(optimizer).status());
      EXPECT_EQ(ddp->hook().step(), step + 1);
      EXPECT_EQ(ddp->optimizer_steps(), step + 1);
    }
    // What was decided, and the optimizer has not taken, is rolled back.
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
    ASSERT_OK_AND_ASSIGN(
        const HookState state,
        DistributedDataParallel::TakeHookState(std::move(ddp)));
    EXPECT_EQ(state.step, 3);
  });
}

TEST_P(CommitWithOptimizerTest, AStepThatTheProgramLeavesOutCountsForTheHook) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Buffered>();
    auto ddp = Wrap(rank, model, Options());
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
    EXPECT_EQ(ddp->hook().step(), 1);
    ASSERT_OK(ddp->CommitStep());
    EXPECT_EQ(ddp->hook().step(), 2);
    ASSERT_OK(ddp->CommitStep());  // nothing to do
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
    ASSERT_OK(ddp->ChangeBuckets({1, 32}));
    EXPECT_EQ(ddp->hook().step(), 3);
  });
}

// ---- the trace ----

TEST(TraceTest, StepsGoToTheFileAndToTheCallback) {
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  DistributedDataParallelOptions options = SmallBuckets(true);
  options.trace_file = testing::TempDir() + "/steps_test.json";
  int heard = 0;
  options.reducer.on_step = [&](const StepReport&) { ++heard; };
  auto model = std::make_shared<Weights>(Names{"a"});
  auto ddp = Wrap(rank, model, options);
  ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
  ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
  EXPECT_EQ(heard, 2);
  ddp.reset();
  std::stringstream text;
  text << std::ifstream(testing::TempDir() + "/steps_test.rank0.json").rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("\"ph\""));
}

TEST(TraceTest, AFileThatCannotBeWrittenIsNamed) {
  DistributedDataParallelOptions options = SmallBuckets(true);
  options.trace_file = "/nowhere/at/all.json";
  EXPECT_THAT(Refusal(options).message(), HasSubstr("/nowhere/at/all"));
}

// ---- micro-batches that do not run as declared ----

class WindowsTest : public testing::TestWithParam<bool> {
 protected:
  static DistributedDataParallelOptions Accumulating(int steps) {
    DistributedDataParallelOptions options = SmallBuckets(GetParam());
    options.accumulation_steps = steps;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(CopyAndView, WindowsTest, testing::Bool());

TEST_P(WindowsTest, ADeclaredMicroBatchExchangesOnce) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Accumulating(1));
    ASSERT_TRUE(ddp->Accumulate().sync);
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 2)));
    EXPECT_THAT(ddp->Backward(model->Use({"a"}, 2)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("call Accumulate before each forward")));
    EXPECT_EQ(model->Gradient("a"), 2);
    // The refusal comes before the pass, and stays.
    EXPECT_FALSE(ddp->Accumulate().sync);
    EXPECT_THAT(ddp->Backward(model->Use({"a"}, 2)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("call Accumulate before each forward")));
  });
}

TEST_P(WindowsTest, APassWithinNoSyncIsOfTheMicroBatchThatExchanges) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Accumulating(1));
    ASSERT_TRUE(ddp->Accumulate().sync);
    {
      const auto scope = ddp->NoSync();
      ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
    }
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
    EXPECT_EQ(ddp->hook().step(), 1);
  });
}

TEST_P(WindowsTest, APassThatTheCallerRunsIsRefusedToo) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Accumulating(1));
    ddp->Accumulate();
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 2)));
    model->Use({"a"}, 2).backward();
    EXPECT_THAT(ddp->Synchronize(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("call Accumulate before each forward")));
  });
}

TEST_P(WindowsTest, AWindowThatIsLeftEarlyCanBeDropped) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Accumulating(2));
    ASSERT_FALSE(ddp->Accumulate().sync);
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 5)));
    ASSERT_TRUE(ddp->Accumulate().sync);
    // The loop is left before this one's backward.
    EXPECT_THAT(ddp->Flush(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr("DropWindow")));
    ASSERT_OK(ddp->DropWindow());
    EXPECT_EQ(model->Gradient("a"), 0);
    EXPECT_EQ(ddp->hook().step(), 0);
    for (const bool sync : {false, true}) {
      ASSERT_EQ(ddp->Accumulate().sync, sync);
      ASSERT_OK(ddp->Backward(model->Use({"a"}, rank.index + 1) / 2));
    }
    EXPECT_EQ(model->Gradient("a"), 1.5);
  });
}

}  // namespace
}  // namespace coxswain::torch::steps_test
