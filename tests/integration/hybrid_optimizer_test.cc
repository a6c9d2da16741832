// Optimizers whose state is sharded within each replica, with real hooks
// between the replicas.

#include <ATen/Parallel.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/reducer.h"
#include "client/torch/shard/sharded_optimizer.h"
#include "client/torch/shard/sharded_program_for_test.h"
#include "client/torch/test_ranks.h"
#include "gmock/gmock.h"
#include "hooks/registry/registry.h"
#include "schedule/fake_step_gate.h"
#include "tests/integration/mesh_ranks.h"

namespace coxswain::torch::hybrid_optimizer_test {
namespace {

using ::testing::HasSubstr;
using ::torch::Tensor;

constexpr int kSteps = 20;

DistributedDataParallelOptions Options(int zero) {
  DistributedDataParallelOptions options = SmallBuckets(false);
  options.reducer.buckets = {300, 500};
  options.zero = zero;
  return options;
}

DistributedDataParallelOptions Hybrid(int zero, const MeshRank& me) {
  DistributedDataParallelOptions options = Options(zero);
  options.reducer.hybrid = me.groups();
  return options;
}

std::unique_ptr<Hook> HookOf(const std::string& spec) {
  auto hook = MakeHook(spec);
  EXPECT_OK(hook);
  return *std::move(hook);
}

std::unique_ptr<ShardedProgram> Make(
    const MeshRank& me, const DistributedDataParallelOptions& options,
    const MakeOptimizer& make = ElementWise()[1].make) {
  at::set_num_threads(1);
  return std::make_unique<ShardedProgram>(me.data.get(), HookOf("allreduce"),
                                          options, make, ::torch::kFloat64);
}

// ---- values ----

void ExpectEqualToOneProcess(int replicas, int shards,
                             const ConnectMesh& connect) {
  std::map<std::string, std::vector<Tensor>> alone;
  for (const NamedOptimizer& named : ElementWise()) {
    alone[named.name] = TrainAlone(named.make, replicas * shards, kSteps);
  }
  OnMesh(replicas, shards, connect, [&](MeshRank& me) {
    for (const NamedOptimizer& named : ElementWise()) {
      for (const int zero : {1, 2}) {
        const auto program = Make(me, Hybrid(zero, me), named.make);
        for (int step = 0; step < kSteps; ++step) program->Run(step);
        EXPECT_EQ(program->ddp->optimizer_steps(), kSteps);
        ExpectClose(*program->model, alone[named.name],
                    absl::StrCat(named.name, ", zero=", zero, ", rank ",
                                 me.rank, " of ", replicas, "x", shards));
      }
    }
  });
}

TEST(HybridOptimizerTest, ReplicasOfShardsComeToWhatOneProcessDoes) {
  ExpectEqualToOneProcess(2, 2, InProcessMesh());
  ExpectEqualToOneProcess(2, 3, InProcessMesh());
  ExpectEqualToOneProcess(3, 2, InProcessMesh());
}

TEST(HybridOptimizerTest, OneReplicaAndOneShardAreAsTheOthers) {
  ExpectEqualToOneProcess(1, 3, InProcessMesh());
  ExpectEqualToOneProcess(3, 1, InProcessMesh());
}

TEST(HybridOptimizerTest, BetweenHostsToo) {
  ExpectEqualToOneProcess(2, 2, TwoHosts());
}

// With a hook that keeps errors, all ranks hold the same bits all the same.
TEST(HybridOptimizerTest, RanksDoNotDivergeWithCompression) {
  Mutex mutex;
  std::map<int, std::vector<Tensor>> values;
  OnMesh(2, 2, TwoHosts(), [&](MeshRank& me) {
    at::set_num_threads(1);
    ShardedProgram program(me.data.get(), HookOf("int8(start_step=2)"),
                           Hybrid(1, me), ElementWise()[1].make);
    for (int step = 0; step < kSteps; ++step) program.Run(step);
    EXPECT_GT(program.ddp->hook().ErrorNorm(), 0);
    MutexLock lock(&mutex);
    values[me.rank] = program.model->Values();
  });
  for (int rank = 1; rank < 4; ++rank) {
    for (size_t i = 0; i < values[0].size(); ++i) {
      EXPECT_TRUE(::torch::equal(values[rank][i], values[0][i]))
          << "rank " << rank << ", parameter " << i;
    }
  }
}

// ---- what travels ----

TEST(HybridOptimizerTest, ParametersAreGatheredWithinAReplica) {
  OnMesh(2, 2, [](MeshRank& me) {
    const auto program = Make(me, Hybrid(2, me));
    program->Run(0);
    const Reducer& reducer = program->ddp->reducer();
    int64_t slices = 0;
    int64_t wholes = 0;
    for (const Bucket& bucket : reducer.buckets()) {
      slices += reducer.OwnSlice(bucket).bytes();
      wholes +=
          BucketSlices::Of(bucket.data, 2).padded() * int64_t{sizeof(double)};
    }
    const auto payload = [&](const std::unique_ptr<Communicator>& group) {
      return group->payload_bytes();
    };
    const int64_t data = payload(me.data);
    const int64_t shard = payload(me.shard);
    const int64_t replicas = payload(me.replicas);
    program->Run(1);
    EXPECT_EQ(payload(me.data), data);
    EXPECT_EQ(payload(me.replicas) - replicas, slices);
    // A reduce-scatter's is what goes in, and an all-gather's one slice.
    EXPECT_EQ(payload(me.shard) - shard, wholes + wholes / 2);
  });
}

// ---- clipping ----

constexpr double kMaxNorm = 0.05;

// By votes no collective is added, otherwise one among those that share.
TEST(HybridOptimizerTest, ClippingIsThatOfOneProcess) {
  const MakeOptimizer make = ElementWise()[1].make;
  const std::vector<Tensor> alone = TrainAlone(make, 4, kSteps, kMaxNorm);
  for (const bool hybrid : {false, true}) {
    for (const int zero : {1, 2}) {
      for (const bool by_vote : {false, true}) {
        SCOPED_TRACE(absl::StrCat("hybrid=", hybrid, ", zero=", zero,
                                  ", by_vote=", by_vote));
        schedule::Plan plan = PlanOf(1);
        plan.terms.commit_vote = by_vote;
        schedule::FakeSchedule schedule(4, plan);
        OnMesh(2, 2, [&](MeshRank& me) {
          DistributedDataParallelOptions options =
              hybrid ? Hybrid(zero, me) : Options(zero);
          options.reducer.max_norm = kMaxNorm;
          options.reducer.gate = schedule.gate(me.rank);
          options.plan = plan;
          const auto program = Make(me, options, make);
          const Reducer& reducer = program->ddp->reducer();
          const auto buckets = static_cast<int64_t>(reducer.buckets().size());
          for (int step = 0; step < kSteps; ++step) {
            const int64_t data = me.data->sequence();
            const int64_t shard = me.shard->sequence();
            const int64_t replicas = me.replicas->sequence();
            program->Run(step);
            EXPECT_LT(reducer.report().clip_scale, 1);
            if (step == 0) continue;  // which also compares the ranks
            const int64_t sliced = 2 * buckets + (by_vote ? 0 : 1);
            EXPECT_EQ(me.data->sequence() - data, hybrid ? 0 : sliced);
            EXPECT_EQ(me.shard->sequence() - shard, hybrid ? sliced : 0);
            EXPECT_EQ(me.replicas->sequence() - replicas, hybrid ? buckets : 0);
          }
          ExpectClose(*program->model, alone, absl::StrCat("rank ", me.rank));
        });
      }
    }
  }
}

TEST(HybridOptimizerTest, AllRanksSkipWhatIsNotFiniteInOneSlice) {
  const schedule::Plan plan = PlanOf(1);
  OnMesh(2, 2, [&](MeshRank& me) {
    DistributedDataParallelOptions options = Hybrid(1, me);
    options.plan = plan;
    options.skip_non_finite = true;
    const auto program = Make(me, options);
    program->Run(0);
    const std::vector<Tensor> before = program->model->Values();
    program->ddp->Accumulate();
    Tensor loss = program->model->Loss(1);
    if (me.rank == 3) {
      const Tensor last = program->model->weights()[4].view({-1})[100];
      loss = loss + last * std::numeric_limits<double>::infinity();
    }
    ASSERT_OK(program->ddp->Backward(loss));
    EXPECT_TRUE(program->ddp->skipped());
    EXPECT_THAT(program->ddp->decision().reason,
                ::testing::AnyOf(HasSubstr("averages of \"w4\""),
                                 HasSubstr("of other ranks' slices")));
    ASSERT_OK(program->Step());
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(::torch::equal(before[i], program->model->weights()[i]));
    }
  });
}

// ---- pieces ----

TEST(HybridOptimizerTest, EachReplicaHasTheWholeModelOnce) {
  using Described = std::map<std::string, std::string>;
  Mutex mutex;
  std::map<int, Described> by_rank;
  int64_t count = 0;
  OnMesh(2, 2, [&](MeshRank& me) {
    const auto program = Make(me, Hybrid(1, me));
    for (int step = 0; step < 3; ++step) program->Run(step);
    const auto pieces = program->sharded->Pieces();
    ASSERT_OK(pieces);
    Described mine;
    MutexLock lock(&mutex);
    for (const KeptPiece& kept : *pieces) {
      const TensorPiece& piece = kept.piece;
      mine[absl::StrCat(piece.parameter, " ", piece.kind, " ", piece.begin, " ",
                        piece.end, " ", piece.step)] =
          std::string(static_cast<const char*>(kept.memory.data),
                      static_cast<size_t>(kept.memory.bytes()));
      const bool value = me.first_replica() && piece.kind == "value";
      if (value) count += kept.memory.count;
    }
    by_rank[me.rank] = std::move(mine);
  });
  int64_t whole = 0;
  const OddModel model;
  for (const Tensor& weight : model.weights()) whole += weight.numel();
  EXPECT_EQ(count, whole);
  EXPECT_EQ(by_rank[2], by_rank[0]);
  EXPECT_EQ(by_rank[3], by_rank[1]);
}

// ---- wrong use ----

TEST(HybridOptimizerTest, WhatDoesNotFitIsRefused) {
  OnMesh(2, 2, [](MeshRank& me) {
    const auto create = [&](const DistributedDataParallelOptions& options,
                            const std::unique_ptr<Communicator>& all) {
      return DistributedDataParallel::Create(std::make_shared<OddModel>(),
                                             all.get(), HookOf("allreduce"),
                                             options)
          .status();
    };
    const auto invalid = [](absl::string_view what) {
      return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
    };
    EXPECT_THAT(create(Hybrid(0, me), me.data),
                invalid("zero=0 shards none; set zero to 1 or 2"));
    EXPECT_THAT(create(Hybrid(1, me), me.shard),
                invalid("in hybrid.shard and"));
    auto options = Hybrid(1, me);
    options.reducer.hybrid.replicas = nullptr;
    EXPECT_THAT(create(options, me.data), invalid("both communicators"));
  });
}

// Ranks of which some would share within a replica, and some among all.
TEST(HybridOptimizerTest, RanksThatShareDifferentlyAreTold) {
  OnMesh(2, 2, [](MeshRank& me) {
    const auto options = me.first_replica() ? Hybrid(1, me) : Options(1);
    EXPECT_THAT(DistributedDataParallel::Create(std::make_shared<OddModel>(),
                                                me.data.get(),
                                                HookOf("allreduce"), options),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("only rank 0: ranks with slices 2")));
  });
}

}  // namespace
}  // namespace coxswain::torch::hybrid_optimizer_test
