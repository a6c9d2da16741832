// What holds whatever moves the data: a job with buffers to its end, and one
// rank that changes alone what all must change.

#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/gloo/gloo_communicator.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/comm/parameter_server/parameter_communicator.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"
#include "tests/conformance/connected_group.h"
#include "tests/conformance/two_level_group.h"
#include "tests/support/parameter_server.h"

namespace coxswain::torch {
namespace {

using testing::HasSubstr;
using ::torch::Tensor;
using Group = std::vector<std::unique_ptr<Communicator>>;

constexpr int kRanks = 4;
// Above what any of this takes: who waits for it has hung.
constexpr absl::Duration kTimeout = absl::Minutes(5);

struct BackEnd {
  std::string name;
  std::function<Group()> make_group;
};
void PrintTo(const BackEnd& value, std::ostream* out) { *out << value.name; }

Group InProcess() {
  const auto world = InProcessWorld::Create(kRanks, kTimeout);
  Group group;
  for (int rank = 0; rank < kRanks; ++rank) {
    group.push_back(world->MakeRank(rank));
  }
  return group;
}

Group ThroughACoordinator() {
  static auto* const server = new ParameterServer;
  static std::atomic<int64_t> generation{0};
  const int64_t own = ++generation;
  return ConnectGroup(kRanks, kTimeout, [own](CommunicatorOptions options) {
    options.store = std::make_shared<MemberStore>(
        server->MakeMembership(absl::StrCat("job-", own), own));
    return ConnectParameterServer(options);
  });
}

class BackEndsTest : public testing::TestWithParam<BackEnd> {};
INSTANTIATE_TEST_SUITE_P(
    BackEnds, BackEndsTest,
    testing::Values(
        BackEnd{"InProcess", InProcess},
        BackEnd{"Shm",
                [] { return ConnectGroup(kRanks, kTimeout, ConnectShm); }},
        BackEnd{"Gloo",
                [] { return ConnectGroup(kRanks, kTimeout, ConnectGloo); }},
        BackEnd{"TwoLevel",
                [] { return ConnectGroup(kRanks, kTimeout, ConnectTwoLevel); }},
        BackEnd{"ParameterServer", ThroughACoordinator}),
    [](const testing::TestParamInfo<BackEnd>& info) {
      return info.param.name;
    });

// Runs each rank on a thread of its own, which destroys its communicator as
// soon as its part is done, as a process that ends does.
void OnProcesses(Group group, const std::function<void(const TestRank&)>& run) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kRanks; ++i) {
    threads.emplace_back([&group, &run, i] {
      at::set_num_threads(1);
      std::unique_ptr<Communicator> own = std::move(group[i]);
      TestRank rank;
      rank.index = i;
      rank.size = kRanks;
      rank.communicator = own.get();
      run(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The last thing that a job with buffers exchanges is a broadcast of them: the
// root may be gone before the others have it.
TEST_P(BackEndsTest, AJobWithBuffersRunsToItsEnd) {
  for (int round = 0; round < 20; ++round) {
    OnProcesses(GetParam().make_group(), [](const TestRank& rank) {
      ::torch::manual_seed(rank.index);
      ::torch::nn::Sequential model(::torch::nn::Linear(8, 64),
                                    ::torch::nn::BatchNorm1d(64),
                                    ::torch::nn::Linear(64, 1));
      auto ddp = Wrap(rank, model.ptr(), SmallBuckets(/*view=*/true));
      ::torch::optim::SGD optimizer(model->parameters(), 0.1);
      for (int step = 0; step < 2; ++step) {
        const Tensor loss = model->forward(::torch::randn({4, 8})).sum();
        ASSERT_OK(ddp->Backward(loss)) << "rank " << rank.index;
        ASSERT_OK(ddp->StepOptimizer(optimizer)) << "rank " << rank.index;
      }
    });
  }
}

struct Change {
  std::string name;
  std::function<absl::Status(DistributedDataParallel*, Weights*)> apply;
};

std::vector<Change> Changes() {
  return {{"ChangeBuckets",
           [](DistributedDataParallel* ddp, Weights*) {
             return ddp->ChangeBuckets({1 << 20, 1 << 20});
           }},
          {"UpdateParameters",
           [](DistributedDataParallel* ddp, Weights* model) {
             model->register_parameter("late", ::torch::ones({2}));
             return ddp->UpdateParameters();
           }},
          {"ChangeHook",
           [](DistributedDataParallel* ddp, Weights*) {
             return ddp->ChangeHook(std::make_unique<AverageHook>(),
                                    /*carry_state=*/false);
           }},
          {"ChangeHook with its state",
           [](DistributedDataParallel* ddp, Weights*) {
             return ddp->ChangeHook(std::make_unique<AverageHook>(),
                                    /*carry_state=*/true);
           }}};
}

TEST_P(BackEndsTest, OneRankThatChangesAloneIsNamedByAll) {
  for (const Change& change : Changes()) {
    for (const int one : {0, kRanks - 1}) {
      SCOPED_TRACE(absl::StrCat("rank ", one, ": ", change.name));
      OnProcesses(GetParam().make_group(), [&](const TestRank& rank) {
        auto model =
            std::make_shared<Weights>(std::vector<std::string>{"a", "b"});
        DistributedDataParallelOptions options = SmallBuckets(/*view=*/true);
        options.reducer.timeout = kTimeout;
        auto ddp = Wrap(rank, model, options);
        ASSERT_OK(ddp->Backward(model->Use({"a", "b"}, 1)));
        absl::Status status;
        if (rank.index == one) status = change.apply(ddp.get(), model.get());
        // Some changes are only compared with the next step.
        if (status.ok()) status = ddp->Backward(model->Use({"a", "b"}, 1));
        EXPECT_THAT(status,
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr(absl::StrCat("rank ", one))))
            << "on rank " << rank.index;
      });
    }
  }
}

}  // namespace
}  // namespace coxswain::torch
