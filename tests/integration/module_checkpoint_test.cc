// Checkpoints of a libtorch program against a real coordinator in the same
// process, each worker a thread: saved while training goes on, and gone on from
// on any number of ranks.

#include "client/torch/module_checkpoint.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/schedule/schedule_client.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/shard/sharded_checkpoint.h"
#include "client/torch/shard/sharded_optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/planned_hook.h"
#include "server/coordinator.h"

namespace coxswain::torch::module_checkpoint_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::torch::Tensor;

constexpr absl::Duration kTimeout = absl::Seconds(60);

// What a run of the job does.
struct JobRun {
  int ranks = 4;
  int64_t steps = 12;
  int64_t every = 6;
  std::string resume;
  std::string hook = "powersgd(start_step=2,rank=2)";
  bool own_errors = false;
  bool same_data = true;  // on all ranks
  int64_t width = 24;
  int accumulation = 1;
  int zero = 0;
  std::string mesh;
  // Called on each rank after each step.
  std::function<void(Session&, int64_t step)> after_step;
};

struct Ended {
  absl::Status status;
  std::vector<Tensor> parameters;
  std::vector<SaveReport> reports;
  int64_t resumed_at = 0;
  std::string blob;
};

class ModuleCheckpointTest : public ::testing::Test {
 protected:
  ModuleCheckpointTest() {
    server::CoordinatorOptions options;
    options.listen = "127.0.0.1:0";
    options.state_dir = absl::StrCat(
        ::testing::TempDir(), "/",
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    options.tick_interval = absl::Milliseconds(10);
    auto started = server::Coordinator::Start(options);
    EXPECT_OK(started);
    if (started.ok()) coordinator_ = std::move(started).value();
  }

  // Runs all ranks. Returns an end with an error, or else rank 0's.
  Ended Train(const JobRun& run) {
    std::vector<Ended> ended(static_cast<size_t>(run.ranks));
    std::vector<std::thread> threads;
    for (int slot = 0; slot < run.ranks; ++slot) {
      threads.emplace_back([&, slot] {
        at::set_num_threads(1);
        Ended mine;
        int rank = slot;
        mine.status = TrainRank(run, slot, &rank, &mine);
        ended[static_cast<size_t>(rank)] = std::move(mine);
      });
    }
    for (std::thread& thread : threads) thread.join();
    // Prefers a rank's own error to what the others report of it.
    for (const Ended& one : ended) {
      if (!one.status.ok() && !absl::IsAborted(one.status)) return one;
    }
    for (const Ended& one : ended) {
      if (!one.status.ok()) return one;
    }
    return ended[0];
  }

  absl::Status TrainRank(const JobRun& run, int slot, int* rank, Ended* ended) {
    auto net = std::make_shared<::torch::nn::SequentialImpl>(
        ::torch::nn::Linear(32, run.width), ::torch::nn::Tanh(),
        ::torch::nn::Linear(run.width, 8));
    net->to(::torch::kFloat64);
    {
      const ::torch::NoGradGuard no_grad;
      for (Tensor& parameter : net->parameters()) {
        parameter.copy_(
            Numbers(parameter.numel(), 3, 0.2).view(parameter.sizes()));
      }
    }
    ::torch::optim::Adam optimizer(net->parameters(), 0.01);
    DistributedDataParallelOptions options;
    options.terms.checkpoint_every = run.every;
    options.accumulation_steps = run.accumulation;
    options.zero = run.zero;
    COXSWAIN_ASSIGN_OR_RETURN(JobManifest manifest,
                              DescribeJob(*net, run.hook, options));
    SessionOptions joining;
    joining.coordinator = absl::StrCat("127.0.0.1:", coordinator_->port());
    joining.job = "job";
    joining.identity = {"host-a", slot};
    joining.host = "host-a";
    joining.world_size = run.ranks;
    joining.mesh = run.mesh;
    joining.join_timeout = joining.collective_timeout = kTimeout;
    COXSWAIN_ASSIGN_OR_RETURN(const auto session,
                              Session::Join(joining, manifest));
    *rank = session->rank();
    const absl::Status status =
        TrainIn(*session, run, net, &optimizer, options, ended);
    const absl::Status left =
        session->Leave(status.ok() ? "done" : status.message(), !status.ok());
    for (const Tensor& parameter : net->parameters()) {
      ended->parameters.push_back(parameter.detach().clone());
    }
    return status.ok() ? left : status;
  }

  static absl::Status TrainIn(
      Session& session, const JobRun& run,
      const std::shared_ptr<::torch::nn::SequentialImpl>& net,
      ::torch::optim::Adam* optimizer, DistributedDataParallelOptions options,
      Ended* ended) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto world, session.World());
    COXSWAIN_RETURN_IF_ERROR(FollowSession(session, &options));
    options.make_hook = MakePlannedHook;
    options.make_averager = MakePlannedAverager;
    COXSWAIN_ASSIGN_OR_RETURN(auto hook, MakePlannedHook(*options.plan));
    COXSWAIN_ASSIGN_OR_RETURN(auto averager,
                              MakePlannedAverager(*options.plan));
    COXSWAIN_ASSIGN_OR_RETURN(const auto ddp,
                              DistributedDataParallel::Create(
                                  net, &world->communicator(), std::move(hook),
                                  options, std::move(averager)));
    Mutex mutex;
    ModuleCheckpoint::Options saving;
    saving.make_hook = MakePlannedHook;
    saving.own_errors = run.own_errors;
    saving.on_report = [&](const SaveReport& report) {
      MutexLock lock(&mutex);
      ended->reports.push_back(report);
    };
    std::unique_ptr<ShardedOptimizer> sharded;
    if (run.zero > 0) {
      COXSWAIN_ASSIGN_OR_RETURN(sharded,
                                ShardedOptimizer::Create(*ddp, *optimizer));
    }
    ModuleCheckpoint checkpoint(session,
                                run.zero > 0 ? ProgramOf(net, sharded.get())
                                             : ProgramOf(net, optimizer),
                                saving);
    int64_t step = 0;
    if (!run.resume.empty()) {
      COXSWAIN_ASSIGN_OR_RETURN(auto resumed,
                                checkpoint.Resume(run.resume, *ddp));
      step = ended->resumed_at = resumed.step;
      ended->blob = resumed.blobs["own"];
    }
    while (step < run.steps && !ddp->stopping()) {
      const MicroBatch micro = ddp->Accumulate();
      const int64_t data = run.same_data ? step : step * 16 + session.rank();
      const Tensor loss =
          net->forward(Numbers(5 * 32, data, 1).view({5, 32})).square().mean();
      COXSWAIN_RETURN_IF_ERROR(ddp->Backward(loss * micro.loss_scale));
      if (!micro.sync) {
        // Nothing that one could go on from, and no end of training.
        COXSWAIN_ASSIGN_OR_RETURN(const bool saved,
                                  checkpoint.Save(*ddp, "in a window"));
        EXPECT_FALSE(saved) << "after step " << step;
        continue;
      }
      COXSWAIN_RETURN_IF_ERROR((sharded != nullptr
                                    ? sharded->Step()
                                    : ddp->StepOptimizer(*optimizer))
                                   .status());
      ++step;
      COXSWAIN_RETURN_IF_ERROR(
          checkpoint.SaveIfAsked(*ddp, {{"own", absl::StrCat("at ", step)}})
              .status());
      if (run.after_step) run.after_step(session, step);
    }
    return checkpoint.Finish(kTimeout);
  }

  static Tensor Numbers(int64_t count, int64_t first, double size) {
    const Tensor numbers = ::torch::arange(count, ::torch::kFloat64);
    return ::torch::sin(numbers * 1.7 + static_cast<double>(first) * 0.31) *
           size;
  }

  // Returns the largest distance of two parameters of the same place.
  static double Distance(const Ended& a, const Ended& b) {
    double distance = 0;
    for (size_t i = 0; i < a.parameters.size(); ++i) {
      distance = std::max(
          distance,
          (a.parameters[i] - b.parameters[i]).abs().max().item<double>());
    }
    return distance;
  }

  std::unique_ptr<server::Coordinator> coordinator_;
};

TEST_F(ModuleCheckpointTest, GoesOnOnAnyNumberOfRanks) {
  const Ended whole = Train({});
  ASSERT_OK(whole.status);
  ASSERT_THAT(whole.reports, SizeIs(2));
  EXPECT_EQ(whole.reports[0].step, 6);
  EXPECT_EQ(whole.reports[0].reason, "checkpoint_every=6");
  for (const int ranks : {4, 2, 1, 5}) {
    JobRun rest;
    rest.ranks = ranks;
    rest.every = 0;
    rest.resume = whole.reports[0].checkpoint_id;
    const Ended resumed = Train(rest);
    ASSERT_OK(resumed.status) << ranks;
    EXPECT_EQ(resumed.resumed_at, 6);
    EXPECT_EQ(resumed.blob, "at 6");
    EXPECT_LT(Distance(resumed, whole), 1e-11) << ranks;
    EXPECT_THAT(resumed.reports, SizeIs(0));
  }
  JobRun from_nothing;
  from_nothing.steps = 6;
  from_nothing.every = 0;
  EXPECT_GT(Distance(Train(from_nothing), whole), 1e-3) << "it can tell";
}

TEST_F(ModuleCheckpointTest, AShardedOptimizersGoesOnOnAnyNumberOfRanks) {
  JobRun run;
  run.zero = 1;
  run.hook = "allreduce";
  const Ended whole = Train(run);
  ASSERT_OK(whole.status);
  ASSERT_THAT(whole.reports, SizeIs(2));
  ASSERT_OK(whole.reports[1].status);
  run.every = 0;
  for (const int ranks : {4, 1, 2, 3, 8}) {
    SCOPED_TRACE(ranks);
    run.ranks = ranks;
    run.resume = whole.reports[1].checkpoint_id;
    const Ended loaded = Train(run);
    ASSERT_OK(loaded.status);
    EXPECT_EQ(loaded.resumed_at, 12);
    EXPECT_EQ(Distance(loaded, whole), 0) << "bit by bit";
    run.resume = whole.reports[0].checkpoint_id;
    const Ended resumed = Train(run);
    ASSERT_OK(resumed.status);
    EXPECT_EQ(resumed.blob, "at 6");
    EXPECT_LT(Distance(resumed, whole), 1e-11);
  }
  // An optimizer that is not sharded is another program.
  run.zero = 0;
  EXPECT_THAT(Train(run).status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("is sharded, and this program's is not")));
}

// Replicas of shards, too, save for any mesh, and are loaded from any.
TEST_F(ModuleCheckpointTest, AShardedOptimizersGoesOnOnAnyMesh) {
  JobRun run;
  run.zero = 2;
  run.hook = "allreduce";
  run.mesh = "dp=2,shard=2";
  const Ended whole = Train(run);
  ASSERT_OK(whole.status);
  ASSERT_THAT(whole.reports, SizeIs(2));
  ASSERT_OK(whole.reports[1].status);
  run.every = 0;
  for (const auto& [ranks, mesh] : std::vector<std::pair<int, std::string>>{
           {4, "dp=2,shard=2"}, {6, "dp=*,shard=3"}, {3, ""}, {2, "dp=2"}}) {
    SCOPED_TRACE(absl::StrCat(ranks, " ranks, mesh ", mesh));
    run.ranks = ranks;
    run.mesh = mesh;
    run.resume = whole.reports[1].checkpoint_id;
    const Ended loaded = Train(run);
    ASSERT_OK(loaded.status);
    EXPECT_EQ(Distance(loaded, whole), 0) << "bit by bit";
    run.resume = whole.reports[0].checkpoint_id;
    const Ended resumed = Train(run);
    ASSERT_OK(resumed.status);
    EXPECT_LT(Distance(resumed, whole), 1e-11);
  }
}

// The errors of a hook between replicas are those of slices, which another
// number of replicas takes over.
TEST_F(ModuleCheckpointTest, AHookBetweenReplicasGoesOnOnMoreOfThem) {
  JobRun run;
  run.zero = 1;
  run.mesh = "dp=2,shard=2";
  const Ended whole = Train(run);
  ASSERT_OK(whole.status);
  ASSERT_THAT(whole.reports, SizeIs(2));
  run.every = 0;
  run.resume = whole.reports[0].checkpoint_id;
  for (const int ranks : {4, 6}) {
    SCOPED_TRACE(ranks);
    run.ranks = ranks;
    run.mesh = "dp=*,shard=2";
    const Ended resumed = Train(run);
    ASSERT_OK(resumed.status);
    EXPECT_EQ(resumed.resumed_at, 6);
    EXPECT_LT(Distance(resumed, whole), 1e-11);
  }
}

TEST_F(ModuleCheckpointTest, TheErrorIsPartOfIt) {
  // Of ranks with different data, so that there is something to lose.
  JobRun run;
  run.own_errors = true;
  run.same_data = false;
  const Ended whole = Train(run);
  ASSERT_OK(whole.status);
  run.every = 0;
  run.resume = whole.reports[0].checkpoint_id;
  const Ended resumed = Train(run);
  ASSERT_OK(resumed.status);
  EXPECT_EQ(Distance(resumed, whole), 0) << "bit by bit";
}

TEST_F(ModuleCheckpointTest, TheNewestOneIsFound) {
  JobRun run;
  run.ranks = 2;
  ASSERT_OK(Train(run).status);
  run.resume = "newest";
  run.steps = 13;
  const Ended resumed = Train(run);
  ASSERT_OK(resumed.status);
  EXPECT_EQ(resumed.resumed_at, 12);
}

TEST_F(ModuleCheckpointTest, WithoutAnyNothingIsFoundOnAllRanks) {
  JobRun run;
  run.ranks = 2;
  run.resume = "newest";
  // NOT_FOUND, or that another rank has failed with it.
  EXPECT_THAT(std::string(Train(run).status.message()),
              HasSubstr("this job has no complete checkpoint"));
}

TEST_F(ModuleCheckpointTest, ARankAsksForOneAndAllStopThere) {
  JobRun run;
  run.ranks = 3;
  run.every = 0;
  run.steps = 1000;
  run.after_step = [](Session& session, int64_t step) {
    if (session.rank() != 1 || step != 4) return;
    session.schedule().RequestCheckpoint("SIGTERM");
    session.schedule().RequestStop("SIGTERM");
  };
  const Ended ended = Train(run);
  ASSERT_OK(ended.status);
  ASSERT_THAT(ended.reports, SizeIs(1));
  EXPECT_OK(ended.reports[0].status);
  EXPECT_EQ(ended.reports[0].step, 5);
  EXPECT_EQ(ended.reports[0].reason, "rank 1 (host-a/1) asks: SIGTERM");
}

TEST_F(ModuleCheckpointTest, NothingIsSavedWithinAWindow) {
  JobRun run;
  run.ranks = 2;
  run.accumulation = 2;
  const Ended ended = Train(run);
  ASSERT_OK(ended.status);
  ASSERT_THAT(ended.reports, SizeIs(2));
  EXPECT_EQ(ended.reports[1].step, 12);
}

TEST_F(ModuleCheckpointTest, AveragersAreSavedToo) {
  JobRun run;
  run.ranks = 2;
  run.hook = "diloco(inner_steps=4,start_step=2)";
  const Ended whole = Train(run);
  ASSERT_OK(whole.status);
  ASSERT_THAT(whole.reports, SizeIs(2));
  EXPECT_OK(whole.reports[0].status);
  run.resume = whole.reports[0].checkpoint_id;
  // Saving brings the ranks together, in the last step as well.
  const Ended resumed = Train(run);
  ASSERT_OK(resumed.status);
  EXPECT_LT(Distance(resumed, whole), 1e-11);
}

TEST_F(ModuleCheckpointTest, AnotherModelsIsRefusedWithWhatDiffers) {
  JobRun run;
  run.ranks = 2;
  ASSERT_OK(Train(run).status);
  run.width = 25;
  run.resume = "newest";
  EXPECT_THAT(Train(run).status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("another model"),
                             HasSubstr("0.weight: saved Double [24, 32], here "
                                       "Double [25, 32]"))));
}

TEST_F(ModuleCheckpointTest, AnotherHooksIsRefusedWithWhatDiffers) {
  JobRun run;
  run.ranks = 2;
  ASSERT_OK(Train(run).status);
  run.hook = "powersgd(start_step=2,rank=3)";
  run.resume = "newest";
  EXPECT_THAT(Train(run).status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("rank")));
}

}  // namespace
}  // namespace coxswain::torch::module_checkpoint_test
