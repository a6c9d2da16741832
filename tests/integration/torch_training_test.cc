// Trains a small network with the hooks of the registry over tcp, one thread
// a rank, and compares with plain libtorch.

#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/comm/backends/registry.h"
#include "client/comm/memory_store.h"
#include "client/torch/distributed_data_parallel.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"

namespace coxswain::torch_training_test {
namespace {

namespace nn = ::torch::nn;
using ::torch::Tensor;

constexpr int kSteps = 50;
constexpr int kBatch = 32;
// Small, so that float32 rounding does not flip a ReLU: plain libtorch with
// and without accumulation differs by 1e-4 at 0.05.
constexpr double kLearningRate = 0.01;

struct Net : nn::Module {
  Net() {
    // Ranks are threads here, and share libtorch's generator.
    static Mutex generator;
    const MutexLock lock(&generator);
    ::torch::manual_seed(7);
    conv = register_module("conv", nn::Conv2d(1, 8, 3));
    hidden = register_module("hidden", nn::Linear(8 * 5 * 5, 32));
    out = register_module("out", nn::Linear(32, 10));
  }
  Tensor forward(Tensor x) {
    x = ::torch::max_pool2d(::torch::relu(conv->forward(x)), 2);
    return out->forward(::torch::relu(hidden->forward(x.flatten(1))));
  }
  nn::Conv2d conv{nullptr};
  nn::Linear hidden{nullptr}, out{nullptr};
};

// Returns the loss of the samples [begin, begin + count) of an endless data
// set.
Tensor Loss(Net& net, int64_t begin, int64_t count) {
  const Tensor number =
      ::torch::arange(begin, begin + count, ::torch::kFloat32).view({-1, 1});
  const Tensor pixel =
      ::torch::arange(12 * 12, ::torch::kFloat32).view({1, -1});
  const Tensor images =
      ::torch::sin(number * 12.9898 + pixel * 78.233 + number * pixel * 0.1)
          .view({count, 1, 12, 12});
  const Tensor labels = number.view(-1).to(::torch::kInt64).remainder(10);
  return nn::functional::cross_entropy(net.forward(images), labels);
}

std::vector<Tensor> Copy(const Net& net) {
  std::vector<Tensor> copy;
  for (const Tensor& parameter : net.parameters()) {
    copy.push_back(parameter.detach().clone());
  }
  return copy;
}

using History = std::vector<std::vector<Tensor>>;  // by step, parameter

// What one rank's parameters are after each step.
void TrainRank(std::shared_ptr<RendezvousStore> store, int rank, int size,
               const std::string& hook_spec, int accumulate, History* history) {
  CommunicatorOptions connect;
  connect.id = "test";
  connect.rank = rank;
  connect.size = size;
  connect.store = std::move(store);
  connect.timeout = absl::Minutes(1);
  auto communicator = Connect("tcp", connect);
  ASSERT_OK(communicator);
  auto hook = MakeHook(hook_spec);
  ASSERT_OK(hook);
  auto net = std::make_shared<Net>();
  torch::DistributedDataParallelOptions options;
  options.accumulation_steps = accumulate;
  options.gradient_as_bucket_view = true;
  options.reducer.buckets.first_bucket_bytes = 4096;
  options.reducer.buckets.bucket_bytes = 16384;
  auto ddp = torch::DistributedDataParallel::Create(net, communicator->get(),
                                                    *std::move(hook), options);
  ASSERT_OK(ddp);
  ASSERT_GT((*ddp)->reducer().buckets().size(), 1u);
  ::torch::optim::SGD optimizer(net->parameters(), kLearningRate);
  for (int batch = 0; batch < kSteps * accumulate; ++batch) {
    const MicroBatch micro = (*ddp)->Accumulate();
    const int64_t begin = int64_t{batch} * size + rank;
    ASSERT_OK(
        (*ddp)->Backward(Loss(*net, begin * kBatch, kBatch) / micro.window));
    if (!micro.sync) continue;
    optimizer.step();
    optimizer.zero_grad();
    history->push_back(Copy(*net));
  }
  // No rank closes its connections while another still needs them.
  ASSERT_OK((*communicator)->Barrier()->Wait(absl::Minutes(1)));
}

std::vector<History> Train(int size, const std::string& hook, int accumulate) {
  at::set_num_threads(1);
  auto store = std::make_shared<MemoryStore>();
  std::vector<History> histories(size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back(TrainRank, store, rank, size, hook, accumulate,
                       &histories[rank]);
  }
  for (std::thread& rank : ranks) rank.join();
  return histories;
}

void ExpectTheSameOnAllRanks(const std::vector<History>& histories) {
  for (size_t rank = 0; rank < histories.size(); ++rank) {
    ASSERT_EQ(histories[rank].size(), static_cast<size_t>(kSteps));
    for (int step = 0; step < kSteps; ++step) {
      for (size_t i = 0; i < histories[0][step].size(); ++i) {
        ASSERT_TRUE(
            ::torch::equal(histories[0][step][i], histories[rank][step][i]))
            << "rank " << rank << ", step " << step << ", parameter " << i;
      }
    }
  }
}

double RelativeDistance(const Tensor& actual, const Tensor& expected) {
  const Tensor want = expected.to(::torch::kFloat64);
  const Tensor distance = (actual.to(::torch::kFloat64) - want).norm();
  return (distance / want.norm()).item<double>();
}

class AllReduceTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(AllReduceTest, RanksLearnWhatOneProcessLearnsFromTheWholeBatch) {
  const auto [size, accumulate] = GetParam();
  const std::vector<History> histories = Train(size, "allreduce", accumulate);
  ExpectTheSameOnAllRanks(histories);
  if (HasFatalFailure()) return;

  Net alone;
  const std::vector<Tensor> start = Copy(alone);
  ::torch::optim::SGD optimizer(alone.parameters(), kLearningRate);
  const int64_t whole = int64_t{kBatch} * size * accumulate;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    Loss(alone, step * whole, whole).backward();
    optimizer.step();
  }
  const std::vector<Tensor> expected = Copy(alone);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT(RelativeDistance(histories[0].back()[i], expected[i]), 1e-5)
        << "parameter " << i;
    // The comparison means something only if training moved the parameter.
    EXPECT_GT(RelativeDistance(start[i], expected[i]), 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, AllReduceTest,
                         testing::Values(std::tuple(2, 1), std::tuple(2, 4)));

class EveryHookTest : public testing::TestWithParam<const char*> {};

TEST_P(EveryHookTest, AllRanksHoldTheSameBitsAfterEveryStep) {
  ExpectTheSameOnAllRanks(Train(3, GetParam(), /*accumulate=*/2));
}

INSTANTIATE_TEST_SUITE_P(
    Registry, EveryHookTest,
    testing::Values("allreduce", "fp16", "bf16", "fp16(order=cast_then_divide)",
                    "powersgd(rank=2,start_step=5)",
                    "fp16(powersgd(rank=2,start_step=5))",
                    "bf16(powersgd(start_step=5,error_feedback=false))",
                    "bf16(allreduce)"));

// ---- an exchange in each micro-batch ----

constexpr int kWindow = 3;
constexpr int kWindows = 8;

// What one rank's parameters are after each window of micro-batches that are
// exchanged one by one: by the plan's sync_each_batch, or by hand, as that many
// steps of the hook whose averages are added up.
void TrainEachBatch(std::shared_ptr<RendezvousStore> store, int rank,
                    const std::string& hook_spec, bool by_hand,
                    History* history) {
  CommunicatorOptions connect;
  connect.id = "test";
  connect.rank = rank;
  connect.size = 2;
  connect.store = std::move(store);
  connect.timeout = absl::Minutes(1);
  ASSERT_OK_AND_ASSIGN(auto communicator, Connect("tcp", connect));
  ASSERT_OK_AND_ASSIGN(auto hook, MakeHook(hook_spec));
  auto net = std::make_shared<Net>();
  torch::DistributedDataParallelOptions options;
  options.accumulation_steps = by_hand ? 1 : kWindow;
  options.terms.sync_each_batch = !by_hand;
  options.reducer.buckets = {4096, 16384};
  ASSERT_OK_AND_ASSIGN(const auto ddp,
                       torch::DistributedDataParallel::Create(
                           net, communicator.get(), std::move(hook), options));
  ::torch::optim::SGD optimizer(net->parameters(), kLearningRate);
  std::vector<Tensor> sum(net->parameters().size());
  for (int batch = 0; batch < kWindow * kWindows; ++batch) {
    ddp->Accumulate();
    const int64_t begin = int64_t{batch} * 2 + rank;
    ASSERT_OK(ddp->Backward(Loss(*net, begin * kBatch, kBatch) / kWindow));
    EXPECT_EQ(ddp->hook().step(), batch + 1);
    const bool ends = (batch + 1) % kWindow == 0;
    for (size_t i = 0; by_hand && i < sum.size(); ++i) {
      Tensor gradient = net->parameters()[i].grad();
      if (batch % kWindow > 0) gradient.add_(sum[i]);
      sum[i] = gradient.clone();
      if (!ends) gradient.zero_();
    }
    if (!ends) continue;
    optimizer.step();
    optimizer.zero_grad();
    history->push_back(Copy(*net));
  }
  EXPECT_EQ(ddp->reducer().totals().steps, kWindow * kWindows);
  ASSERT_OK(communicator->Barrier()->Wait(absl::Minutes(1)));
}

class EachBatchTest : public testing::TestWithParam<const char*> {};

TEST_P(EachBatchTest, IsAsManyStepsOfTheHook) {
  at::set_num_threads(1);
  std::vector<History> histories(4);  // by way and rank
  for (const int way : {0, 1}) {
    auto store = std::make_shared<MemoryStore>();
    std::vector<std::thread> ranks;
    for (const int rank : {0, 1}) {
      ranks.emplace_back(TrainEachBatch, store, rank, GetParam(),
                         /*by_hand=*/way == 1, &histories[2 * way + rank]);
    }
    for (std::thread& rank : ranks) rank.join();
  }
  for (const History& history : histories) {
    ASSERT_EQ(history.size(), static_cast<size_t>(kWindows));
    for (size_t window = 0; window < history.size(); ++window) {
      for (size_t i = 0; i < history[window].size(); ++i) {
        ASSERT_TRUE(::torch::equal(history[window][i], histories[0][window][i]))
            << "window " << window << ", parameter " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Registry, EachBatchTest,
    testing::Values("allreduce", "fp16", "powersgd(rank=2,start_step=4)",
                    "fp16(powersgd(rank=2,start_step=4))"));

}  // namespace
}  // namespace coxswain::torch_training_test
