// What ranks hold and move with an optimizer whose state is sharded: each
// tensor of libtorch's and each buffer of the back end is counted.

#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/reduce/bucket_slices.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/shard/sharded_optimizer.h"
#include "client/torch/test_ranks.h"
#include "hooks/allreduce.h"
#include "tests/conformance/connected_group.h"
#include "tests/integration/counted_memory.h"

namespace coxswain::torch::sharded_costs_test {
namespace {

namespace optim = ::torch::optim;
using ::torch::Tensor;

// ---- what is counted ----

constexpr int64_t kWidth = 512;
constexpr int kLayers = 6;

// About 1.6 million parameters, and activations of next to nothing.
class WideModel : public ::torch::nn::Module {
 public:
  WideModel() {
    for (int i = 0; i < kLayers; ++i) {
      layers_.push_back(register_module(absl::StrCat("layer", i),
                                        ::torch::nn::Linear(kWidth, kWidth)));
    }
  }
  Tensor Loss() {
    Tensor x = ::torch::ones({1, kWidth});
    for (auto& layer : layers_) x = ::torch::tanh(layer->forward(x));
    return x.square().mean();
  }

 private:
  std::vector<::torch::nn::Linear> layers_;
};

// How a rank trains.
struct Program {
  int zero = 0;
  int window = 1;  // micro-batches
  bool sync_each_batch = false;
  bool view = true;  // .grad are views of the buckets, with zero=0
  int windows = 3;
};

// Of one rank, in bytes.
struct Costs {
  double parameters = 0;  // a count
  double held = 0;        // after a step, without `released`
  double peak = 0;        // within the backward passes
  double released = 0;    // buckets that are released hold, with zero=2
  double gradient = 0;    // the largest
  double bucket = 0;      // the largest, with padding
  int64_t padded = 0;     // of all buckets with padding
  int64_t wire = 0;       // handed to the transport in a step
};

// Bytes of a parameter's value, of its gradient, and of what Adam keeps of it.
constexpr double kValue = 4;
constexpr double kGradient = 4;
constexpr double kState = 8;

double ParametersOf(const WideModel& model) {
  double count = 0;
  for (const Tensor& parameter : model.parameters()) {
    count += static_cast<double>(parameter.numel());
  }
  return count;
}

class Rank {
 public:
  Rank(const Program& program, std::unique_ptr<Communicator> inner)
      : program_(program), communicator_(std::move(inner), OwnLedger()) {
    schedule::Plan plan = PlanOf(program.window);
    plan.terms.sync_each_batch = program.sync_each_batch;
    DistributedDataParallelOptions options;
    options.plan = plan;
    options.gradient_as_bucket_view = program.view;
    options.zero = program.zero;
    options.reducer.rebuild = false;
    options.reducer.buckets = {1 << 20, 1 << 20};
    // This pass is faster than any exchange.
    options.reducer.bucket_wait = kSoon;
    auto ddp = DistributedDataParallel::Create(
        model_, &communicator_, MakeAllReduceHook("allreduce"), options);
    EXPECT_OK(ddp);
    ddp_ = *std::move(ddp);
    if (program.zero == 0) {
      // The communicator's thread lets go of the memory that the parameters
      // were copied through a moment after they are there.
      EXPECT_TRUE(OwnLedger()->AwaitAtMost(
          static_cast<int64_t>(2.1 * kValue * ParametersOf(*model_)), kSoon));
      return;
    }
    auto sharded = ShardedOptimizer::Create(*ddp_, adam_);
    EXPECT_OK(sharded);
    sharded_ = *std::move(sharded);
  }

  void RunWindow() {
    wire_ = communicator_.wire_bytes();
    int64_t peak = 0;
    for (int i = 0; i < program_.window; ++i) {
      const MicroBatch micro = ddp_->Accumulate();
      const Tensor loss = model_->Loss();
      OwnLedger()->BeginPeak();
      EXPECT_OK(ddp_->Backward(loss, micro));
      peak = std::max(peak, OwnLedger()->peak());
    }
    peak_ = peak;
    EXPECT_OK(program_.zero > 0 ? sharded_->Step()
                                : ddp_->StepOptimizer(adam_));
  }

  Costs costs() const {
    Costs costs;
    for (const Tensor& parameter : model_->parameters()) {
      const auto count = static_cast<double>(parameter.numel());
      costs.parameters += count;
      costs.gradient = std::max(costs.gradient, count * sizeof(float));
    }
    const Reducer& reducer = ddp_->reducer();
    if (program_.zero == 2) {
      costs.released =
          static_cast<double>(reducer.totals().bucket_memory.bytes);
    }
    costs.held = static_cast<double>(OwnLedger()->bytes()) - costs.released;
    costs.peak = static_cast<double>(peak_);
    costs.wire = communicator_.wire_bytes() - wire_;
    for (const Bucket& bucket : reducer.buckets()) {
      const int64_t bytes =
          BucketSlices::Of(bucket.data, communicator_.size()).padded() * 4;
      costs.padded += bytes;
      costs.bucket = std::max(costs.bucket, static_cast<double>(bytes));
    }
    return costs;
  }

 private:
  const Program program_;
  CountingCommunicator communicator_;
  const std::shared_ptr<WideModel> model_ = std::make_shared<WideModel>();
  optim::Adam adam_{model_->parameters(), optim::AdamOptions(1e-3)};
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::unique_ptr<ShardedOptimizer> sharded_;
  int64_t wire_ = 0;  // before the last window
  int64_t peak_ = 0;  // of the last window
};

// By rank, of the last window.
std::vector<Costs> Measure(int size, const Program& program) {
  std::vector<Costs> costs(static_cast<size_t>(size));
  auto group = ConnectGroup(size, kSoon, ConnectShm);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < costs.size(); ++i) {
    threads.emplace_back([&, i] {
      at::set_num_threads(1);
      OwnLedger() = std::make_shared<Ledger>();
      Rank rank(program, std::move(group[i]));
      for (int window = 0; window < program.windows; ++window) rank.RunWindow();
      costs[i] = rank.costs();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return costs;
}

class ShardedCostsTest : public ::testing::Test {
 private:
  const CountedTensors counted_;
};

double PersistentOf(int size, int zero) {
  return kValue + kGradient / (zero == 2 ? size : 1) +
         kState / (zero > 0 ? size : 1);
}

TEST_F(ShardedCostsTest, EachRankHoldsItsSlices) {
  for (const int size : {2, 4}) {
    for (const int zero : {0, 1, 2}) {
      const double formula = PersistentOf(size, zero);
      for (const Costs& rank : Measure(size, {zero})) {
        EXPECT_NEAR(rank.held / rank.parameters, formula, 0.02 * formula)
            << "zero=" << zero << ", " << size << " ranks";
      }
    }
  }
}

// The gradient that the pass has just made is within the three.
TEST_F(ShardedCostsTest, APassNeedsThreeBucketsMore) {
  for (const int size : {2, 4}) {
    for (const Costs& rank : Measure(size, {2})) {
      const double formula = PersistentOf(size, 2) * rank.parameters;
      EXPECT_LE(rank.peak, formula + 3 * rank.bucket + 0.02 * formula)
          << size << " ranks; " << (rank.peak - formula) / rank.bucket
          << " buckets";
    }
  }
}

// docs/parallelism.md, "Memory of accumulation".
TEST_F(ShardedCostsTest, AWindowsSumsTakeWhatTheFormulaSays) {
  constexpr int kSize = 4;
  for (const int zero : {0, 1, 2}) {
    for (const bool each : {false, true}) {
      double gradients = 1;  // as often as the model has them
      if (zero == 0 && each) gradients = 2;
      if (zero == 1 && each) gradients = 1 + 1.0 / kSize;
      if (zero == 2) gradients = (each ? 0 : 1) + 1.0 / kSize;
      const double formula = gradients * kGradient;
      const double beside = kValue + kState / (zero > 0 ? kSize : 1);
      for (const Costs& rank : Measure(kSize, {zero, 3, each})) {
        // A pass makes one gradient at a time.
        const double sums = rank.peak - rank.gradient - rank.released;
        EXPECT_NEAR(sums / rank.parameters - beside, formula, 0.03 * formula)
            << "zero=" << zero << ", sync_each_batch=" << each;
      }
    }
  }
}

// In the first one, before the optimizer has a state, each .grad is the memory
// that the backward pass has made, beside the buckets.
TEST_F(ShardedCostsTest, APassCopiesNoGradient) {
  Program program;
  program.view = false;
  program.windows = 1;
  for (const Costs& rank : Measure(2, program)) {
    const double formula = (kValue + 2 * kGradient) * rank.parameters;
    EXPECT_LT(rank.peak, formula + rank.gradient / 2);
  }
}

TEST_F(ShardedCostsTest, AStepMovesWhatAnAllReduceWould) {
  for (const int size : {2, 4}) {
    for (const int zero : {1, 2}) {
      for (const Costs& rank : Measure(size, {zero})) {
        EXPECT_EQ(rank.wire, 2 * (size - 1) * rank.padded / size)
            << "zero=" << zero << ", " << size << " ranks";
      }
    }
  }
}

}  // namespace
}  // namespace coxswain::torch::sharded_costs_test
