#include "client/torch/distributed_data_parallel.h"

#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "base/status_matchers.h"
#include "client/comm/held/held_communicator.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/comm/in_process/loopback_communicator.h"

namespace coxswain::torch::distributed_data_parallel_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using ::torch::Tensor;

constexpr absl::Duration kSoon = absl::Seconds(30);
// Small, because the comparison is of float32 rounding too: at 0.05 a ReLU
// flips somewhere, and plain libtorch with and without accumulation differs by
// 1e-4.
constexpr double kLearningRate = 0.01;

// Averages float32 buckets.
class AverageHook : public Hook {
 public:
  std::string spec() const override { return "average"; }
  absl::Status Configure(const std::vector<ParameterSpec>&,
                         int world_size) override {
    world_size_ = world_size;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    return std::make_unique<Average>(bucket, &communicator, world_size_);
  }
  absl::Status Commit() override {
    ++step_;
    return absl::OkStatus();
  }
  void Rollback() override { ++rollbacks_; }
  int64_t step() const override { return step_; }
  absl::StatusOr<HookState> SaveState(Communicator&) override {
    return HookState();
  }
  absl::Status LoadState(const HookState&, int, int) override {
    return absl::OkStatus();
  }
  int rollbacks() const { return rollbacks_; }

 private:
  class Average : public Exchange {
   public:
    Average(const Bucket& bucket, Communicator* communicator, int world_size)
        : bucket_(bucket),
          communicator_(communicator),
          world_size_(world_size) {}
    absl::StatusOr<WorkPtr> Advance() override {
      if (!started_) {
        started_ = true;
        return communicator_->AllReduce(bucket_.data);
      }
      float* data = static_cast<float*>(bucket_.data.data);
      for (int64_t i = 0; i < bucket_.data.count; ++i) {
        data[i] /= static_cast<float>(world_size_);
      }
      return WorkPtr();
    }

   private:
    const Bucket bucket_;
    Communicator* const communicator_;
    const int world_size_;
    bool started_ = false;
  };

  int world_size_ = 0;
  int64_t step_ = 0;
  int rollbacks_ = 0;
};

struct Net : ::torch::nn::Module {
  Net() {
    conv1 = register_module("conv1", ::torch::nn::Conv2d(1, 4, 3));
    conv2 = register_module("conv2", ::torch::nn::Conv2d(4, 8, 3));
    linear = register_module("linear", ::torch::nn::Linear(8 * 4 * 4, 10));
  }
  Tensor forward(Tensor x) {
    x = ::torch::max_pool2d(::torch::relu(conv1->forward(x)), 2);
    x = ::torch::relu(conv2->forward(x));
    return linear->forward(x.flatten(1));
  }
  ::torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  ::torch::nn::Linear linear{nullptr};
};

// Returns the samples [begin, begin + count) of an endless data set.
std::pair<Tensor, Tensor> Samples(int64_t begin, int64_t count) {
  const Tensor number =
      ::torch::arange(begin, begin + count, ::torch::kFloat32).view({-1, 1});
  const Tensor pixel =
      ::torch::arange(14 * 14, ::torch::kFloat32).view({1, -1});
  return {::torch::sin(number * 12.9898 + pixel * 78.233 + number * pixel * 0.1)
              .view({count, 1, 14, 14}),
          number.view(-1).to(::torch::kInt64).remainder(10)};
}

Tensor Loss(Net& net, int64_t begin, int64_t count) {
  const auto [images, labels] = Samples(begin, count);
  return ::torch::nn::functional::cross_entropy(net.forward(images), labels);
}

std::vector<Tensor> Copy(const Net& net) {
  std::vector<Tensor> copy;
  for (const Tensor& parameter : net.parameters()) {
    copy.push_back(parameter.detach().clone());
  }
  return copy;
}

void Assign(const std::vector<Tensor>& values, Net* net) {
  ::torch::NoGradGuard no_grad;
  const auto parameters = net->parameters();
  for (size_t i = 0; i < values.size(); ++i) parameters[i].copy_(values[i]);
}

void ExpectClose(const std::vector<Tensor>& actual,
                 const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const Tensor want = expected[i].to(::torch::kFloat64);
    const Tensor difference = actual[i].to(::torch::kFloat64) - want;
    EXPECT_LT(difference.norm().item<double>(),
              1e-5 * want.norm().item<double>())
        << "parameter " << i;
  }
}

// A rank in a thread of its own, with a model that no other rank has.
struct Rank {
  int index = 0;
  std::unique_ptr<Communicator> communicator;
  std::shared_ptr<Net> net = std::make_shared<Net>();
  AverageHook* hook = nullptr;  // of the ddp that Wrap made

  std::unique_ptr<DistributedDataParallel> Wrap(
      DistributedDataParallelOptions options = {}) {
    options.reducer.timeout = kSoon;
    // Several buckets, also for this small model.
    options.reducer.buckets = {1024, 4096};
    auto owned = std::make_unique<AverageHook>();
    hook = owned.get();
    auto ddp = DistributedDataParallel::Create(net, communicator.get(),
                                               std::move(owned), options);
    EXPECT_OK(ddp);
    return std::move(ddp).value();
  }
};

std::vector<Rank> MakeRanks(int size) {
  ::torch::manual_seed(1);
  const auto world = InProcessWorld::Create(size, kSoon);
  std::vector<Rank> ranks(size);
  for (int i = 0; i < size; ++i) {
    ranks[i].index = i;
    ranks[i].communicator = world->MakeRank(i);
  }
  return ranks;
}

void OnThreads(std::vector<Rank>* ranks,
               const std::function<void(Rank*)>& body) {
  std::vector<std::thread> threads;
  for (Rank& rank : *ranks) {
    threads.emplace_back([&body, &rank] {
      at::set_num_threads(1);
      body(&rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// (gradient as bucket view, accumulation steps, undefine gradients)
class EquivalenceTest
    : public testing::TestWithParam<std::tuple<bool, int, bool>> {};

TEST_P(EquivalenceTest, TwoRanksLearnWhatOneLearnsFromTwiceTheBatch) {
  constexpr int kSteps = 50;
  constexpr int64_t kBatch = 32;
  const auto [view, accumulate, undefine] = GetParam();
  at::set_num_threads(1);
  std::vector<Rank> ranks = MakeRanks(2);
  const std::vector<Tensor> start = Copy(*ranks[0].net);

  std::vector<std::vector<std::vector<Tensor>>> history(2);
  OnThreads(&ranks, [&, view = view, accumulate = accumulate,
                     undefine = undefine](Rank* rank) {
    DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = view;
    options.accumulation_steps = accumulate;
    auto ddp = rank->Wrap(options);
    EXPECT_GT(ddp->reducer().buckets().size(), 1u);
    ::torch::optim::SGD optimizer(rank->net->parameters(), kLearningRate);
    for (int batch = 0; batch < kSteps * accumulate; ++batch) {
      const MicroBatch micro = ddp->Accumulate();
      const int64_t begin = (2 * batch + rank->index) * kBatch;
      ASSERT_OK(ddp->Backward(Loss(*rank->net, begin, kBatch) / micro.window));
      if (!micro.sync) continue;
      optimizer.step();
      if (undefine) {
        for (auto& p : rank->net->parameters()) p.mutable_grad() = Tensor();
      } else {
        optimizer.zero_grad();
      }
      history[rank->index].push_back(Copy(*rank->net));
    }
    EXPECT_EQ(ddp->hook().step(), kSteps);
  });

  ASSERT_EQ(history[0].size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(history[1].size(), static_cast<size_t>(kSteps));
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < start.size(); ++i) {
      ASSERT_TRUE(::torch::equal(history[0][step][i], history[1][step][i]))
          << "step " << step << ", parameter " << i;
    }
  }

  Net alone;
  Assign(start, &alone);
  ::torch::optim::SGD optimizer(alone.parameters(), kLearningRate);
  const int64_t whole = 2 * kBatch * accumulate;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    Loss(alone, step * whole, whole).backward();
    optimizer.step();
  }
  ExpectClose(history[0].back(), Copy(alone));
  // The comparison means something only if training moved the parameters.
  EXPECT_GT((Copy(alone)[0] - start[0]).norm().item<double>(), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(
    CopyAndView, EquivalenceTest,
    testing::Values(std::tuple(false, 1, false), std::tuple(true, 1, false),
                    std::tuple(true, 1, true), std::tuple(false, 4, true),
                    std::tuple(true, 4, false), std::tuple(true, 4, true)));

TEST(DistributedDataParallelTest, TakesParametersAndBuffersFromRankZero) {
  at::set_num_threads(1);
  std::vector<Rank> ranks = MakeRanks(2);
  std::vector<::torch::nn::BatchNorm1d> norms;
  for (int i = 0; i < 2; ++i) {
    norms.emplace_back(3);
    ::torch::NoGradGuard no_grad;
    norms[i]->weight.fill_(i + 1);
    norms[i]->bias.set_requires_grad(false).fill_(i + 1);
    norms[i]->running_mean.fill_(i + 5);
    norms[i]->num_batches_tracked.fill_(i + 7);
  }
  OnThreads(&ranks, [&](Rank* rank) {
    ASSERT_OK(DistributedDataParallel::Create(norms[rank->index].ptr(),
                                              rank->communicator.get(),
                                              std::make_unique<AverageHook>()));
  });
  EXPECT_TRUE(norms[1]->weight.eq(1).all().item<bool>());
  EXPECT_TRUE(norms[1]->bias.eq(1).all().item<bool>());
  EXPECT_TRUE(norms[1]->running_mean.eq(5).all().item<bool>());
  EXPECT_EQ(norms[1]->num_batches_tracked.item<int64_t>(), 7);
}

TEST(DistributedDataParallelTest, WhatIsTheSameAtTheStartIsNotCopied) {
  at::set_num_threads(1);
  std::vector<Rank> ranks = MakeRanks(2);
  std::vector<::torch::nn::BatchNorm1d> norms;
  for (int i = 0; i < 2; ++i) {
    norms.emplace_back(3);
    ::torch::NoGradGuard no_grad;
    norms[i]->weight.fill_(i + 1);
    norms[i]->running_mean.fill_(i + 5);
  }
  OnThreads(&ranks, [&](Rank* rank) {
    auto& norm = norms[static_cast<size_t>(rank->index)];
    DistributedDataParallelOptions options;
    options.same_at_start = true;
    ASSERT_OK_AND_ASSIGN(const auto ddp,
                         DistributedDataParallel::Create(
                             norm.ptr(), rank->communicator.get(),
                             std::make_unique<AverageHook>(), options));
    // As this is wrong here, it shows.
    EXPECT_TRUE(norm->weight.eq(rank->index + 1).all().item<bool>());
    EXPECT_TRUE(norm->running_mean.eq(rank->index + 5).all().item<bool>());
    // What comes later is copied.
    norm->register_parameter(
        "late", ::torch::full({2}, static_cast<double>(rank->index)));
    ASSERT_OK(ddp->UpdateParameters());
    EXPECT_TRUE(norm->named_parameters()["late"].eq(0).all().item<bool>());
    EXPECT_TRUE(norm->weight.eq(rank->index + 1).all().item<bool>());
  });
}

// d(sum of rank's x * w)/dw = x: gradients that are easy to see.
struct Scale : ::torch::nn::Module {
  Scale() {
    used = register_parameter("used", ::torch::ones({2}));
    idle = register_parameter("idle", ::torch::ones({2}));
  }
  Tensor Use(double x) { return (used * x).sum(); }
  Tensor UseBoth(double x) { return ((used + idle) * x).sum(); }
  Tensor used, idle;
};

struct ScaleRank {
  explicit ScaleRank(Communicator* communicator, bool view, int steps = 1) {
    DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = view;
    options.accumulation_steps = steps;
    options.reducer.timeout = kSoon;
    auto owned = std::make_unique<AverageHook>();
    hook = owned.get();
    ddp = DistributedDataParallel::Create(model, communicator, std::move(owned),
                                          options)
              .value();
  }
  double used() const { return model->used.grad()[0].item<double>(); }
  double idle() const { return model->idle.grad()[1].item<double>(); }

  std::shared_ptr<Scale> model = std::make_shared<Scale>();
  AverageHook* hook = nullptr;
  std::unique_ptr<DistributedDataParallel> ddp;
};

class BothModesTest : public testing::TestWithParam<bool> {
 protected:
  void OnTwoRanks(int accumulation_steps,
                  const std::function<void(int, ScaleRank*)>& body) {
    std::vector<Rank> ranks = MakeRanks(2);
    OnThreads(&ranks, [&](Rank* rank) {
      ScaleRank scale(rank->communicator.get(), GetParam(), accumulation_steps);
      body(rank->index, &scale);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(CopyAndView, BothModesTest, testing::Bool());

TEST_P(BothModesTest, WithinNoSyncGradientsOnlySumUp) {
  OnTwoRanks(1, [](int rank, ScaleRank* scale) {
    {
      const auto no_sync = scale->ddp->NoSync();
      ASSERT_OK(scale->ddp->Backward(scale->model->UseBoth(1 + rank)));
      ASSERT_OK(scale->ddp->Backward(scale->model->Use(10 + rank)));
    }
    EXPECT_EQ(scale->used(), 11 + 2 * rank);
    EXPECT_EQ(scale->hook->step(), 0);
    ASSERT_OK(scale->ddp->Backward(scale->model->Use(100 + rank)));
    EXPECT_EQ(scale->used(), 112.5);
    // What an earlier micro-batch summed up counts too.
    EXPECT_EQ(scale->idle(), 1.5);
    EXPECT_EQ(scale->hook->step(), 1);
  });
}

TEST_P(BothModesTest, AnUnusedParameterGetsTheAverage) {
  OnTwoRanks(1, [](int rank, ScaleRank* scale) {
    ASSERT_OK(scale->ddp->Backward(rank == 0 ? scale->model->Use(2)
                                             : scale->model->UseBoth(4)));
    EXPECT_EQ(scale->used(), 3);
    EXPECT_EQ(scale->idle(), 2);
  });
}

TEST_P(BothModesTest, ATailOfUnknownLengthIsFlushedWithItsOwnDivisor) {
  OnTwoRanks(4, [](int rank, ScaleRank* scale) {
    for (int i = 0; i < 2; ++i) {
      const MicroBatch micro = scale->ddp->Accumulate();
      EXPECT_FALSE(micro.sync);
      ASSERT_OK(scale->ddp->Backward(scale->model->Use(4 * i + 2 * rank) /
                                     micro.window));
    }
    ASSERT_OK_AND_ASSIGN(const bool flushed, scale->ddp->Flush());
    EXPECT_TRUE(flushed);
    EXPECT_EQ(scale->used(), 3);  // the mean of 0, 4, 2, 6
    EXPECT_EQ(scale->hook->step(), 1);
    ASSERT_OK_AND_ASSIGN(const bool again, scale->ddp->Flush());
    EXPECT_FALSE(again);
    EXPECT_EQ(scale->ddp->Accumulate().step, 1);
  });
}

TEST_P(BothModesTest, TheCallerDecidesWhetherAStepCounts) {
  OnTwoRanks(1, [](int rank, ScaleRank* scale) {
    for (const bool apply : {false, true}) {
      scale->model->zero_grad();
      scale->model->Use(rank).backward();
      ASSERT_OK(scale->ddp->Synchronize());
      EXPECT_EQ(scale->used(), 0.5);
      ASSERT_OK(scale->ddp->FinishStep(apply));
    }
    EXPECT_EQ(scale->hook->rollbacks(), 1);
    EXPECT_EQ(scale->hook->step(), 1);
    EXPECT_THAT(scale->ddp->FinishStep(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("call Synchronize first")));
  });
}

TEST_P(BothModesTest, APassWithoutParametersStillTakesPart) {
  OnTwoRanks(1, [](int rank, ScaleRank* scale) {
    if (rank == 0) {
      ASSERT_OK(scale->ddp->Backward(scale->model->UseBoth(4)));
    } else {
      ASSERT_OK(scale->ddp->Backward(::torch::ones({}).requires_grad_()));
    }
    EXPECT_EQ(scale->used(), 2);
    EXPECT_EQ(scale->idle(), 2);
  });
}

TEST_P(BothModesTest, ASecondPassInAStepIsAnErrorForAllRanks) {
  OnTwoRanks(1, [](int rank, ScaleRank* scale) {
    scale->model->Use(1).backward();
    ASSERT_OK(scale->ddp->Synchronize());
    if (rank == 0) {
      scale->model->Use(1).backward();
      EXPECT_THAT(scale->ddp->Synchronize(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           HasSubstr("neither committed nor rolled back")));
      EXPECT_FALSE(scale->ddp->FinishStep().ok());
      EXPECT_EQ(scale->hook->rollbacks(), 1);
      return;
    }
    ASSERT_OK(scale->ddp->FinishStep());
    EXPECT_THAT(scale->ddp->Backward(scale->model->Use(1)), Not(IsOk()));
  });
}

TEST_P(BothModesTest, WhatLibtorchThrowsEndsTheStepOnAllRanks) {
  OnTwoRanks(1, [](int rank, ScaleRank* scale) {
    Tensor inner = scale->model->used * 2;
    if (rank == 0) {
      inner.register_hook([](const Tensor& gradient) -> Tensor {
        if (gradient.defined()) throw std::runtime_error("it broke");
        return gradient;
      });
    }
    // The idle parameter's gradient is there before the throwing one's.
    const absl::Status status =
        scale->ddp->Backward((inner + scale->model->idle).sum());
    if (rank == 0) {
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kInternal,
                           HasSubstr("rank 0, step 0, backward: it broke")));
      EXPECT_EQ(scale->ddp->Synchronize(), status);
    } else {
      EXPECT_THAT(status, Not(IsOk()));
    }
  });
}

TEST_P(BothModesTest, AnExchangeThatNeverCameIsNoticed) {
  LoopbackCommunicator communicator;
  ScaleRank scale(&communicator, GetParam(), 2);
  EXPECT_FALSE(scale.ddp->Accumulate().sync);
  ASSERT_OK(scale.ddp->Backward(scale.model->Use(1)));
  EXPECT_TRUE(scale.ddp->Accumulate().sync);
  {
    const auto no_sync = scale.ddp->NoSync();
    ASSERT_OK(scale.ddp->Backward(scale.model->Use(1)));
  }
  EXPECT_FALSE(scale.ddp->Accumulate().sync);
  EXPECT_THAT(scale.ddp->Backward(scale.model->Use(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("outside NoSync")));
}

TEST_P(BothModesTest, GradientsOutliveTheWrapper) {
  LoopbackCommunicator communicator;
  auto scale = std::make_unique<ScaleRank>(&communicator, GetParam());
  const std::shared_ptr<Scale> model = scale->model;
  ASSERT_OK(scale->ddp->Backward(model->UseBoth(3)));
  const void* bucket = scale->ddp->reducer().GradientView(0).data;
  EXPECT_EQ(model->used.grad().data_ptr() == bucket, GetParam());
  scale.reset();
  EXPECT_NE(model->used.grad().data_ptr(), bucket);
  EXPECT_EQ(model->used.grad().sum().item<double>(), 6);
  model->Use(1).backward();
  EXPECT_EQ(model->used.grad().sum().item<double>(), 8);
}

TEST(DistributedDataParallelTest, TheFirstBucketIsLaunchedBeforeBackwardEnds) {
  at::set_num_threads(1);
  HeldCommunicator held(std::make_unique<LoopbackCommunicator>());
  held.Release(1);  // the broadcast at the start, and nothing else
  auto net = std::make_shared<Net>();
  DistributedDataParallelOptions options;
  options.reducer.buckets = {1, 1};
  options.reducer.rebuild = false;
  ASSERT_OK_AND_ASSIGN(
      auto ddp, DistributedDataParallel::Create(
                    net, &held, std::make_unique<AverageHook>(), options));
  ASSERT_EQ(held.launches().size(), 1u);

  // The first layer's gradient is the last one to be computed.
  size_t launched = 0;
  net->conv1->weight.register_hook([&](const Tensor&) {
    EXPECT_TRUE(held.AwaitLaunches(2, kSoon));
    launched = held.launches().size();
    EXPECT_FALSE(net->conv1->weight.grad().defined());
    held.Open();
  });
  ASSERT_OK(ddp->Backward(Loss(*net, 0, 8)));
  EXPECT_GE(launched, 2u);
  EXPECT_EQ(held.launches().size(), 1 + net->parameters().size());
}

TEST(DescribeParametersTest, ListsWhatIsTrainedOnce) {
  Net net;
  net.conv1->bias.set_requires_grad(false);
  net.register_module("again", net.linear);
  ASSERT_OK_AND_ASSIGN(const auto specs, DescribeParameters(net));
  std::vector<std::string> names;
  for (const ParameterSpec& spec : specs) names.push_back(spec.name);
  EXPECT_THAT(names, ElementsAre("conv1.weight", "conv2.weight", "conv2.bias",
                                 "linear.weight", "linear.bias"));
  EXPECT_THAT(specs[0].shape, ElementsAre(4, 1, 3, 3));
  EXPECT_EQ(specs[0].dtype, DType::kFloat32);
}

TEST(DescribeParametersTest, NamesAParameterOfAnUnsupportedType) {
  ::torch::nn::Module module;
  module.register_parameter("odd", ::torch::ones({1}, ::torch::kComplexFloat));
  EXPECT_THAT(DescribeParameters(module),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"odd\" is of type ComplexFloat")));
}

}  // namespace
}  // namespace coxswain::torch::distributed_data_parallel_test
