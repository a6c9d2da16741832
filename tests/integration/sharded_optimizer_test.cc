// Optimizers whose state is sharded, over the back ends of the CPU, with the
// real hook: bits, memory, and bytes on the wire.

#include "client/torch/shard/sharded_optimizer.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/comm/held/held_communicator.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/reduce/bucket_slices.h"
#include "client/torch/shard/sharded_program_for_test.h"
#include "client/torch/test_ranks.h"
#include "hooks/allreduce.h"
#include "tests/conformance/connected_group.h"

namespace coxswain::torch::sharded_optimizer_test {
namespace {

namespace optim = ::torch::optim;
using ::torch::Tensor;
using Connect = absl::StatusOr<std::unique_ptr<Communicator>> (*)(
    const CommunicatorOptions&);

// Runs `body` on ranks that are connected, each in a thread.
void OnConnected(int size, Connect connect,
                 const std::function<void(int rank, Communicator&)>& body) {
  auto group = ConnectGroup(size, kSoon, connect);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      body(rank, *group[static_cast<size_t>(rank)]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

DistributedDataParallelOptions Options(int zero) {
  DistributedDataParallelOptions options = SmallBuckets(false);
  options.reducer.buckets = {300, 500};
  options.zero = zero;
  return options;
}

std::unique_ptr<Hook> AllReduce() { return MakeAllReduceHook("allreduce"); }

// ---- values ----

// The wrapper and the sharded optimizers side by side, on one group.
TEST(ShardedBitsTest, SharedMemoryGivesTheWrappersBits) {
  constexpr int kSteps = 50;
  for (const int size : {2, 3, 4}) {
    OnConnected(size, ConnectShm, [&](int rank, Communicator& communicator) {
      for (const NamedOptimizer& named : ElementWise()) {
        std::vector<std::unique_ptr<ShardedProgram>> programs;
        for (const int zero : {0, 1, 2}) {
          programs.push_back(std::make_unique<ShardedProgram>(
              &communicator, AllReduce(), Options(zero), named.make));
        }
        for (int step = 0; step < kSteps; ++step) {
          for (const auto& program : programs) program->Run(step);
        }
        for (size_t zero : {1, 2}) {
          ExpectSameBits(*programs[0]->model, *programs[zero]->model,
                         absl::StrCat(named.name, ", zero=", zero, ", rank ",
                                      rank, " of ", size));
        }
      }
    });
  }
}

// One process that has all ranks' batches.
std::vector<Tensor> TrainAlone(const MakeOptimizer& make, int ranks,
                               int steps) {
  OddModel model(::torch::kFloat64);
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(model.parameters());
  const auto optimizer = make(std::move(groups));
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      (model.Loss(1000 * rank + step) / ranks).backward();
    }
    optimizer->step();
  }
  return model.Values();
}

void ExpectEqualToOneProcess(int size, Connect connect) {
  constexpr int kSteps = 50;
  std::map<std::string, std::vector<Tensor>> alone;
  for (const NamedOptimizer& named : ElementWise()) {
    alone[named.name] = TrainAlone(named.make, size, kSteps);
  }
  OnConnected(size, connect, [&](int, Communicator& communicator) {
    for (const NamedOptimizer& named : ElementWise()) {
      ShardedProgram program(&communicator, AllReduce(), Options(1), named.make,
                             ::torch::kFloat64);
      for (int step = 0; step < kSteps; ++step) program.Run(step);
      for (size_t i = 0; i < alone[named.name].size(); ++i) {
        const Tensor& expected = alone[named.name][i];
        const double difference =
            (program.model->weights()[i] - expected).abs().max().item<double>();
        EXPECT_LE(difference, 1e-12 * expected.abs().max().item<double>())
            << named.name << ", " << size << " ranks, parameter " << i;
      }
    }
  });
}

TEST(ShardedValuesTest, SharedMemoryComesToWhatOneProcessDoes) {
  for (const int size : {2, 3, 4}) ExpectEqualToOneProcess(size, ConnectShm);
}

TEST(ShardedValuesTest, TcpComesToWhatOneProcessDoes) {
  for (const int size : {2, 3, 4}) ExpectEqualToOneProcess(size, ConnectTcp);
}

// ---- memory and bytes ----

constexpr int64_t kWidth = 512;
constexpr int kLayers = 6;

// About 1.6 million parameters.
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
  int64_t count() const {
    int64_t count = 0;
    for (const Tensor& parameter : parameters()) count += parameter.numel();
    return count;
  }

 private:
  std::vector<::torch::nn::Linear> layers_;
};

// The bytes of libtorch's tensors.
class CountingAllocator : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) const override {
    if (bytes == 0) return {nullptr, nullptr, &Free, c10::kCPU};
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes) != 0) std::abort();
    MutexLock lock(&Get().mutex_);
    Get().sizes_[memory] = static_cast<int64_t>(bytes);
    Get().bytes_ += static_cast<int64_t>(bytes);
    return {memory, memory, &Free, c10::kCPU};
  }
  at::DeleterFnPtr raw_deleter() const override { return &Free; }

  static CountingAllocator& Get() {
    static auto* const allocator = new CountingAllocator;
    return *allocator;
  }
  int64_t bytes() {
    MutexLock lock(&mutex_);
    return bytes_;
  }

 private:
  static void Free(void* memory) {
    if (memory == nullptr) return;
    {
      MutexLock lock(&Get().mutex_);
      Get().bytes_ -= Get().sizes_[memory];
      Get().sizes_.erase(memory);
    }
    std::free(memory);
  }

  mutable Mutex mutex_;
  mutable std::map<void*, int64_t> sizes_ ABSL_GUARDED_BY(mutex_);
  mutable int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Counts what a back end's buffers take.
class CountingCommunicator : public HeldCommunicator {
 public:
  explicit CountingCommunicator(std::unique_ptr<Communicator> inner)
      : HeldCommunicator(std::move(inner)) {
    Open();
  }
  absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateBuffer(
      int64_t count, DType dtype) override {
    auto made = HeldCommunicator::AllocateBuffer(count, dtype);
    if (!made.ok()) return made.status();
    return std::make_unique<Buffer>(*std::move(made), bytes_);
  }
  int64_t bytes() const { return *bytes_; }

 private:
  using Count = std::shared_ptr<std::atomic<int64_t>>;
  class Buffer : public BufferOwner {
   public:
    Buffer(std::unique_ptr<BufferOwner> inner, Count bytes)
        : inner_(std::move(inner)), bytes_(std::move(bytes)) {
      *bytes_ += span().bytes();
    }
    ~Buffer() override { *bytes_ -= span().bytes(); }
    Span span() const override { return inner_->span(); }

   private:
    const std::unique_ptr<BufferOwner> inner_;
    const Count bytes_;
  };

  const Count bytes_ = std::make_shared<std::atomic<int64_t>>(0);
};

// What the ranks of a group hold for each parameter, on average, and what each
// has handed to the transport in a step.
struct Costs {
  double bytes_per_parameter = 0;
  std::vector<int64_t> wire;
  int64_t padded = 0;  // bytes of all buckets with padding
  // Of rank 0, in buckets that are released, for each parameter; at most, and
  // of the largest bucket, in bytes.
  double bucket_bytes = 0;
  int64_t bucket_peak = 0;
  int64_t largest = 0;
};

Costs Measure(int size, int zero) {
  Costs costs;
  costs.wire.resize(static_cast<size_t>(size));
  auto group = ConnectGroup(size, kSoon, ConnectShm);
  std::vector<std::unique_ptr<CountingCommunicator>> counting;
  for (auto& communicator : group) {
    counting.push_back(
        std::make_unique<CountingCommunicator>(std::move(communicator)));
  }
  const int64_t before = CountingAllocator::Get().bytes();
  Mutex mutex;
  CondVar changed;
  int measuring = 0;
  int64_t held = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      CountingCommunicator& communicator = *counting[static_cast<size_t>(rank)];
      const auto model = std::make_shared<WideModel>();
      DistributedDataParallelOptions options;
      options.gradient_as_bucket_view = true;
      options.zero = zero;
      options.reducer.rebuild = false;
      options.reducer.buckets = {1 << 20, 1 << 20};
      // This pass is faster than any exchange.
      options.reducer.bucket_wait = kSoon;
      auto ddp = DistributedDataParallel::Create(model, &communicator,
                                                 AllReduce(), options);
      ASSERT_OK(ddp);
      optim::Adam adam(model->parameters(), optim::AdamOptions(1e-3));
      std::unique_ptr<ShardedOptimizer> sharded;
      if (zero > 0) {
        auto made = ShardedOptimizer::Create(**ddp, adam);
        ASSERT_OK(made);
        sharded = *std::move(made);
      }
      int64_t wire = 0;
      for (int step = 0; step < 3; ++step) {
        wire = communicator.wire_bytes();
        ASSERT_OK((*ddp)->Backward(model->Loss()));
        ASSERT_OK(zero > 0 ? sharded->Step() : (*ddp)->StepOptimizer(adam));
      }
      MutexLock lock(&mutex);
      costs.wire[static_cast<size_t>(rank)] = communicator.wire_bytes() - wire;
      held += communicator.bytes();
      if (rank == 0) {
        for (const Bucket& bucket : (*ddp)->reducer().buckets()) {
          const int64_t bytes =
              BucketSlices::Of(bucket.data, size).padded() * 4;
          costs.padded += bytes;
          costs.largest = std::max(costs.largest, bytes);
        }
        const auto count = static_cast<double>(model->count());
        costs.bytes_per_parameter = count;
        const auto use = (*ddp)->reducer().totals().bucket_memory;
        costs.bucket_bytes = static_cast<double>(use.bytes) / count;
        costs.bucket_peak = use.peak_bytes;
      }
      // The last one measures while all hold their state.
      if (++measuring == size) {
        held += CountingAllocator::Get().bytes() - before;
        changed.NotifyAll();
      }
      (void)changed.WaitFor(&mutex, kSoon, [&] { return measuring == size; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  costs.bytes_per_parameter =
      static_cast<double>(held) / size / costs.bytes_per_parameter;
  return costs;
}

class ShardedCostsTest : public ::testing::Test {
 protected:
  ShardedCostsTest() : before_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(&CountingAllocator::Get(), 200);
  }
  ~ShardedCostsTest() override { c10::SetCPUAllocator(before_, 200); }

 private:
  c10::Allocator* const before_;
};

// Of Adam in float32: 16 unsharded; the state is 8 of them.
TEST_F(ShardedCostsTest, ARankHoldsASliceOfTheState) {
  for (const int size : {2, 4}) {
    EXPECT_NEAR(Measure(size, 0).bytes_per_parameter, 16, 0.02 * 16);
    const double expected = 8 + 8.0 / size;
    EXPECT_NEAR(Measure(size, 1).bytes_per_parameter, expected,
                0.02 * expected);
  }
}

// With zero=2 also those of the gradients, beside three buckets.
TEST_F(ShardedCostsTest, ARankHoldsASliceOfTheGradients) {
  for (const int size : {2, 4}) {
    const Costs costs = Measure(size, 2);
    const double expected = 4 + 12.0 / size;
    // Ranks may differ in what their buckets hold.
    EXPECT_NEAR(costs.bytes_per_parameter - costs.bucket_bytes, expected,
                0.02 * expected + 4.0 / kLayers);
    EXPECT_LE(costs.bucket_peak, 3 * costs.largest);
  }
}

TEST_F(ShardedCostsTest, AStepMovesWhatAnAllReduceWould) {
  for (const int size : {2, 4}) {
    for (const int zero : {1, 2}) {
      const Costs costs = Measure(size, zero);
      for (const int64_t wire : costs.wire) {
        EXPECT_EQ(wire, 2 * (size - 1) * costs.padded / size)
            << size << " ranks";
      }
    }
  }
}

}  // namespace
}  // namespace coxswain::torch::sharded_optimizer_test
