// Changes between steps: of the parameters, the hook, the buckets; and what
// holds whatever moves the data: a job with buffers to its end, and one rank
// that changes alone what all must change.

#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/comm/parameter_server/parameter_communicator.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"
#include "schedule/terms.h"
#include "tests/conformance/connected_group.h"
#include "tests/conformance/two_level_group.h"
#include "tests/support/parameter_server.h"

namespace coxswain::torch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;
using ::torch::Tensor;

using Group = std::vector<std::unique_ptr<Communicator>>;
using Names = std::vector<std::string>;

// ---- changes between steps ----

double Value(Weights& model, const std::string& name) {
  return model.weight(name)[0].item<double>();
}

class ChangesTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(CopyAndView, ChangesTest, testing::Bool());

TEST_P(ChangesTest, AParameterAddedLaterIsTrainedLikeTheOthers) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a", "b"});
    auto ddp = Wrap(rank, model, SmallBuckets(GetParam()));
    ASSERT_OK(ddp->Backward(model->Use({"a", "b"}, 1)));
    model->zero_grad();
    {
      const auto no_sync = ddp->NoSync();
      ASSERT_OK(ddp->Backward(model->Use({"a"}, 10 + 2 * rank.index)));
    }
    model->register_parameter("late", ::torch::full({2}, 5.0F + rank.index));
    model->register_buffer("count", ::torch::full({2}, 7.0F + rank.index));
    ASSERT_OK(ddp->UpdateParameters());
    EXPECT_EQ(Value(*model, "late"), 5);
    EXPECT_EQ(model->named_buffers()["count"][0].item<double>(), 7);
    EXPECT_EQ(ddp->reducer().parameters().size(), 3u);
    // Its step count stays.
    EXPECT_EQ(ddp->hook().step(), 1);
    for (int step = 0; step < 2; ++step) {
      ASSERT_OK(ddp->Backward(model->Use({"b", "late"}, 2 + 2 * rank.index)));
      EXPECT_EQ(model->Gradient("a"), step == 0 ? 11 : 0);
      EXPECT_EQ(model->Gradient("b"), 3);
      EXPECT_EQ(model->Gradient("late"), 3);
      model->zero_grad();
    }
  });
}

TEST_P(ChangesTest, AFrozenParameterIsLeftAlone) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a", "b", "c"});
    auto ddp = Wrap(rank, model, SmallBuckets(GetParam()));
    ASSERT_OK(ddp->Backward(model->Use({"a", "b", "c"}, 1)));
    model->weight("a").set_requires_grad(false);
    ASSERT_OK(ddp->UpdateParameters());
    EXPECT_EQ(ddp->reducer().parameters().size(), 2u);
    ASSERT_OK(ddp->Backward(model->Use({"a", "c"}, 2 + 2 * rank.index)));
    EXPECT_EQ(model->Gradient("a"), 1);
    EXPECT_EQ(model->Gradient("b"), 1);
    EXPECT_EQ(model->Gradient("c"), 4);
    // It thaws with rank 0's value.
    model->weight("a").fill_(20 + rank.index);
    model->weight("a").set_requires_grad(true);
    ASSERT_OK(ddp->UpdateParameters());
    EXPECT_EQ(Value(*model, "a"), 20);
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 2 + 2 * rank.index)));
    EXPECT_EQ(model->Gradient("a"), 4);
  });
}

TEST(UpdateParametersTest, RanksThatDifferAreRefusedWithADiff) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, SmallBuckets(true));
    if (rank.index == 1) model->register_parameter("odd", ::torch::ones({3}));
    EXPECT_THAT(ddp->UpdateParameters(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("\"odd\": float32 [3]")));
  });
}

TEST(UpdateParametersTest, BuffersThatDifferAreRefusedWithTheRanks) {
  OnRanks(3, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    model->register_buffer("count", ::torch::zeros({2}));
    auto ddp = Wrap(rank, model, SmallBuckets(true));
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
    model->register_buffer("mean", ::torch::ones({rank.index == 2 ? 3 : 4}));
    EXPECT_THAT(ddp->UpdateParameters(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("rank 2 differs from rank 0"),
                               HasSubstr("buffer mean Float [3]"),
                               HasSubstr("buffer mean Float [4]"))));
  });
}

TEST(UpdateParametersTest, BuffersThatAllRanksChangeAreAccepted) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    Tensor count = model->register_buffer("count", ::torch::zeros({2}));
    auto ddp = Wrap(rank, model, SmallBuckets(true));
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
    {
      const ::torch::NoGradGuard no_grad;
      count.resize_({3}).fill_(rank.index + 1);
    }
    ASSERT_OK(ddp->UpdateParameters());
    count.fill_(5 + rank.index);
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
    EXPECT_EQ(count[2].item<double>(), 5);
  });
}

TEST(BuffersTest, RanksWithBuffersOfDifferentSizesDoNotBegin) {
  OnRanks(3, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    model->register_buffer("mean", ::torch::ones({rank.index == 1 ? 3 : 4}));
    EXPECT_THAT(DistributedDataParallel::Create(model, rank.communicator,
                                                std::make_unique<AverageHook>(),
                                                SmallBuckets(true))
                    .status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("rank 1 differs from rank 0"),
                               HasSubstr("buffer mean Float [3]"),
                               HasSubstr("buffer mean Float [4]"))));
  });
}

TEST(BuffersTest, OneThatChangesOnOneRankEndsTheStepOnAll) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    Tensor mean = model->register_buffer("mean", ::torch::ones({4}));
    auto ddp = Wrap(rank, model, SmallBuckets(true));
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
    if (rank.index == 1) mean.resize_({3});
    const absl::Status status = ddp->Backward(model->Use({"a"}, 1));
    EXPECT_FALSE(status.ok());
    if (rank.index == 0) return;
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("rank 1, step 1"),
                               HasSubstr("\"mean\", now of type Float and "
                                         "shape [3], was changed"),
                               HasSubstr("call UpdateParameters"))));
  });
}

TEST(UpdateParametersTest, IsForBetweenSteps) {
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  auto model = std::make_shared<Weights>(Names{"a"});
  auto ddp = Wrap(rank, model, SmallBuckets(true));
  model->Use({"a"}, 1).backward();
  EXPECT_THAT(ddp->UpdateParameters(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("UpdateParameters is for between steps")));
  EXPECT_FALSE(ddp->ChangeBuckets({1, 1}).ok());
  EXPECT_FALSE(ddp->ChangeHook(std::make_unique<AverageHook>(), false).ok());
  ASSERT_OK(ddp->Synchronize());
  EXPECT_FALSE(ddp->UpdateParameters().ok());
  ASSERT_OK(ddp->FinishStep());
  EXPECT_OK(ddp->UpdateParameters());
}

TEST_P(ChangesTest, AStaticGraphIsLearnedAgain) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a", "b"});
    DistributedDataParallelOptions options = SmallBuckets(GetParam());
    options.static_graph = true;
    auto ddp = Wrap(rank, model, options);
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
    model->register_parameter("late", ::torch::ones({2}));
    ASSERT_OK(ddp->UpdateParameters());
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      ASSERT_OK(ddp->Backward(model->Use({"late", "b"}, 2 * rank.index)));
      EXPECT_EQ(model->Gradient("late"), 1);
    }
    EXPECT_FALSE(ddp->Backward(model->Use({"a"}, 1)).ok());
  });
}

TEST_P(ChangesTest, OverlappedOptimizersKeepTheirState) {
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  auto model = std::make_shared<Weights>(Names{"a", "b"});
  DistributedDataParallelOptions options = SmallBuckets(GetParam());
  int made = 0;
  options.overlapped_optimizer = [&](const Tensor& parameter) {
    ++made;
    return std::make_unique<::torch::optim::SGD>(
        std::vector<Tensor>{parameter},
        ::torch::optim::SGDOptions(1).momentum(1));
  };
  auto ddp = Wrap(rank, model, options);
  ASSERT_OK(ddp->Backward(model->Use({"a", "b"}, 1)));
  model->register_parameter("late", ::torch::ones({2}));
  ASSERT_OK(ddp->UpdateParameters());
  EXPECT_EQ(made, 3);
  ASSERT_OK(ddp->Backward(model->Use({"a", "b", "late"}, 1)));
  EXPECT_EQ(Value(*model, "a"), 1 - 1 - 2);
  EXPECT_EQ(Value(*model, "late"), 0);
}

TEST_P(ChangesTest, AnotherHookContinuesFromTheOldOnesState) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a", "b"});
    auto ddp = Wrap(rank, model, SmallBuckets(GetParam()));
    ASSERT_OK(ddp->Backward(model->Use({"a", "b"}, 1)));
    model->zero_grad();

    auto same = std::make_unique<AverageHook>();
    const Hook* const next = same.get();
    ASSERT_OK(ddp->ChangeHook(std::move(same), /*carry_state=*/true));
    EXPECT_EQ(&ddp->hook(), next);
    EXPECT_EQ(next->step(), 1);

    // Another kind cannot take over the state, and the old one goes on.
    EXPECT_THAT(ddp->ChangeHook(std::make_unique<AverageHook>(/*whole=*/true),
                                /*carry_state=*/true),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("the state is that of average")));
    EXPECT_EQ(&ddp->hook(), next);
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 1.5 + rank.index)));
    EXPECT_EQ(model->Gradient("a"), 2);
    EXPECT_EQ(next->step(), 2);
    model->zero_grad();

    ASSERT_OK(ddp->ChangeHook(std::make_unique<AverageHook>(/*whole=*/true),
                              /*carry_state=*/false));
    EXPECT_EQ(ddp->hook().step(), 0);
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 1.5 + rank.index)));
    EXPECT_EQ(model->Gradient("a"), 1.5);  // of 1 and 2
  });
}

class ApartHook : public AverageHook {
 public:
  bool needs_averager() const override { return true; }
};

TEST(ChangeHookTest, AHookThatNeedsAnAveragerIsRefused) {
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  auto model = std::make_shared<Weights>(Names{"a"});
  auto ddp = Wrap(rank, model, SmallBuckets(true));
  EXPECT_THAT(
      ddp->ChangeHook(std::make_unique<ApartHook>(), /*carry_state=*/false),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("make a new wrapper instead")));
  EXPECT_OK(ddp->Backward(model->Use({"a"}, 1)));
}

TEST(ManifestTest, HasWhatRanksMustShare) {
  DistributedDataParallelOptions options = SmallBuckets(true);
  options.reducer.max_norm = 1.5;
  options.reducer.settings["seed"] = "7";
  options.static_graph = true;
  options.accumulation_steps = 4;
  ASSERT_OK_AND_ASSIGN(
      const JobManifest manifest,
      DescribeJob(Weights(Names{"a", "b"}), "average", options));
  EXPECT_EQ(manifest.hook, "average");
  EXPECT_EQ(manifest.accumulation_steps, 4);
  EXPECT_EQ(manifest.terms, schedule::Terms());
  EXPECT_EQ(manifest.parameters.size(), 2u);
  EXPECT_THAT(
      manifest.settings,
      UnorderedElementsAre(
          Pair("bucket_bytes", "16"), Pair("first_bucket_bytes", "1"),
          Pair("rebuild", "true"), Pair("find_unused_parameters", "false"),
          Pair("uneven_inputs", "false"), Pair("max_norm", "1.5"),
          Pair("static_graph", "true"), Pair("broadcast_buffers", "true"),
          Pair("skip_non_finite", "false"),
          Pair("overlapped_optimizer", "false"), Pair("seed", "7")));
}

// ---- every back end ----

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
        server->MakeMemberContext(absl::StrCat("job-", own), own));
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
        BackEnd{"Tcp",
                [] { return ConnectGroup(kRanks, kTimeout, ConnectTcp); }},
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
  return {
      {"ChangeBuckets",
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
      {"ChangeHook with its state", [](DistributedDataParallel* ddp, Weights*) {
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
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr(absl::StrCat("rank ", one))))
            << "on rank " << rank.index;
      });
    }
  }
}

}  // namespace
}  // namespace coxswain::torch
