// Optimizers whose state is sharded, over the back ends of the CPU, with the
// real hook: bits and values.

#include "client/torch/shard/sharded_optimizer.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/torch/shard/sharded_program_for_test.h"
#include "client/torch/test_ranks.h"
#include "hooks/allreduce.h"
#include "tests/conformance/connected_group.h"

namespace coxswain::torch::sharded_optimizer_test {
namespace {

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
      ExpectClose(*program.model, alone[named.name],
                  absl::StrCat(named.name, ", ", size, " ranks"));
    }
  });
}

TEST(ShardedValuesTest, SharedMemoryComesToWhatOneProcessDoes) {
  for (const int size : {2, 3, 4}) ExpectEqualToOneProcess(size, ConnectShm);
}

TEST(ShardedValuesTest, TcpComesToWhatOneProcessDoes) {
  for (const int size : {2, 3, 4}) ExpectEqualToOneProcess(size, ConnectTcp);
}

}  // namespace
}  // namespace coxswain::torch::sharded_optimizer_test
