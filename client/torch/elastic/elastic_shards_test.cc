#include "client/torch/elastic/elastic_shards.h"

#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/held/held_communicator.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/torch/shard/sharded_program_for_test.h"
#include "client/torch/test_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/in_threads.h"

namespace coxswain::torch {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

// By parameter, kind and element.
using Elements = std::map<std::string, std::string>;

// One rank, through several groups of ranks.
struct Rank {
  std::unique_ptr<HeldCommunicator> communicator;
  std::unique_ptr<ShardedProgram> program;
  ElasticShards shards;
  absl::Status status;

  // Of another group: what was trained before is gone.
  void Join(InProcessWorld& world, int rank) {
    program.reset();
    communicator = std::make_unique<HeldCommunicator>(world.MakeRank(rank));
    communicator->Open();
    DistributedDataParallelOptions options = SmallBuckets(false);
    options.reducer.buckets = {300, 500};
    options.zero = 1;
    program = std::make_unique<ShardedProgram>(communicator.get(),
                                               std::make_unique<AverageHook>(),
                                               options, ElementWise()[2].make);
  }
  void Train(int from, int to) {
    for (int step = from; step < to; ++step) program->Run(step);
  }
  void Keep(const ShardVersion& version) {
    EXPECT_OK(shards.Keep(*program->sharded, version));
  }
  void AddTo(Elements* elements) const {
    auto pieces = program->sharded->Pieces();
    ASSERT_OK(pieces);
    for (const KeptPiece& one : *pieces) {
      const auto size = static_cast<int64_t>(SizeOf(one.piece.dtype));
      for (int64_t i = 0; i < one.piece.count(); ++i) {
        (*elements)[absl::StrCat(one.piece.parameter, " ", one.piece.kind, " ",
                                 one.piece.begin + i, " of step ",
                                 one.piece.step)] =
            std::string(static_cast<const char*>(one.memory.data) + i * size,
                        static_cast<size_t>(size));
      }
    }
  }
};

using Ranks = std::vector<Rank*>;

// Runs these ranks in a group of their own.
template <typename Work>
void Together(const Ranks& ranks, const Work& work) {
  const auto world = InProcessWorld::Create(static_cast<int>(ranks.size()));
  InThreads(static_cast<int>(ranks.size()), [&](int i) {
    at::set_num_threads(1);
    Rank& rank = *ranks[static_cast<size_t>(i)];
    rank.Join(*world, i);
    work(rank);
  });
}

Elements ElementsOf(const Ranks& ranks) {
  Elements elements;
  for (const Rank* rank : ranks) rank->AddTo(&elements);
  return elements;
}

std::vector<absl::Status> RestoreAll(const Ranks& ranks,
                                     const ShardVersion& version) {
  Together(ranks, [&](Rank& rank) {
    rank.status = rank.shards.Restore(version, *rank.communicator,
                                      rank.program->sharded.get());
  });
  std::vector<absl::Status> statuses;
  for (const Rank* rank : ranks) statuses.push_back(rank->status);
  return statuses;
}

void ExpectRestored(const Ranks& ranks, const ShardVersion& version,
                    const Elements& expected) {
  for (const absl::Status& status : RestoreAll(ranks, version)) {
    ASSERT_OK(status);
  }
  EXPECT_EQ(ElementsOf(ranks), expected);
  for (const Rank* rank : ranks) {
    ExpectSameBits(*rank->program->model, *ranks[0]->program->model,
                   "all ranks have the values");
  }
}

TEST(ElasticShardsTest, RanksOfAnyNumberTakeThemOver) {
  Rank ranks[5];
  const Ranks four = {&ranks[0], &ranks[1], &ranks[2], &ranks[3]};
  Together(four, [](Rank& rank) {
    rank.Train(0, 3);
    rank.Keep({7, 3});
  });
  const Elements trained = ElementsOf(four);
  // One is new, and the others are in other places.
  const Ranks five = {&ranks[4], &ranks[2], &ranks[1], &ranks[0], &ranks[3]};
  ExpectRestored(five, {7, 3}, trained);
  // What was kept stays until it is forgotten.
  ExpectRestored(four, {7, 3}, trained);
  ranks[2].shards.Forget();
  EXPECT_THAT(RestoreAll(four, {7, 3}),
              Each(StatusIs(absl::StatusCode::kNotFound, HasSubstr("wants"))));
}

TEST(ElasticShardsTest, AReplicaHasWhatALostRankHad) {
  Rank ranks[4];
  const Ranks one = {&ranks[0], &ranks[1]};
  const Ranks other = {&ranks[2], &ranks[3]};
  for (const Ranks& replica : {one, other}) {
    Together(replica, [](Rank& rank) {
      rank.Train(0, 3);
      rank.Keep({7, 3});
    });
  }
  const Elements trained = ElementsOf(one);
  ASSERT_EQ(ElementsOf(other), trained);
  ExpectRestored({&ranks[0], &ranks[2], &ranks[3]}, {7, 3}, trained);
  ExpectRestored({&ranks[3], &ranks[0]}, {7, 3}, trained);
  // Both have the same slice.
  EXPECT_THAT(RestoreAll({&ranks[0], &ranks[2]}, {7, 3}),
              Each(StatusIs(absl::StatusCode::kNotFound, HasSubstr("wants"))));
}

TEST(ElasticShardsTest, WhatIsOfAnotherVersionIsNotUsed) {
  Rank ranks[2];
  const Ranks both = {&ranks[0], &ranks[1]};
  Together(both, [&](Rank& rank) {
    rank.Train(0, 2);
    rank.Keep({7, 2});
    rank.Train(2, 3);
    if (&rank == &ranks[1]) rank.Keep({7, 3});
  });
  for (const ShardVersion version :
       {ShardVersion{7, 2}, ShardVersion{7, 3}, ShardVersion{6, 2}}) {
    EXPECT_THAT(
        RestoreAll(both, version),
        Each(StatusIs(absl::StatusCode::kNotFound,
                      AnyOf(HasSubstr("none of"), HasSubstr("wants")))));
  }
}

// In the all-gather behind the step of the slices.
TEST(ElasticShardsTest, AStepThatWasCutShortIsThatOfTheSlices) {
  Rank ranks[3];
  const Ranks all = {&ranks[0], &ranks[1], &ranks[2]};
  Together(all, [](Rank& rank) { rank.Train(0, 5); });
  const Elements trained = ElementsOf(all);
  Together(all, [&](Rank& rank) {
    rank.Train(0, 3);
    const size_t before = rank.communicator->launches().size();
    rank.Train(3, 4);
    const size_t after = rank.communicator->launches().size();
    ASSERT_EQ(rank.communicator->launches().back().kind, "all-gather");
    if (&rank == &ranks[1]) {
      rank.communicator->Fail(static_cast<int64_t>(2 * after - before - 1),
                              absl::UnavailableError("the network is gone"));
    }
    ShardedProgram& program = *rank.program;
    const MicroBatch micro = program.ddp->Accumulate();
    const int batch = 1000 * rank.communicator->rank() + 4;
    ASSERT_OK(program.ddp->Backward(program.model->Loss(batch), micro));
    EXPECT_EQ(program.sharded->steps(), 4);
    EXPECT_FALSE(program.sharded->Step().ok());
    EXPECT_EQ(program.sharded->steps(), 5);
    EXPECT_EQ(program.ddp->optimizer_steps(), 4);
    rank.Keep({7, 5});
  });
  ExpectRestored({&ranks[0], &ranks[1], &ranks[2]}, {7, 5}, trained);
}

TEST(ElasticShardsTest, TrainingBeginsWithParametersThatHaveTakenNoStep) {
  Rank ranks[2];
  const auto check = [](Rank& rank) {
    rank.status = rank.shards.CheckUntouched(*rank.communicator);
  };
  Together({&ranks[0], &ranks[1]}, [&](Rank& rank) {
    check(rank);
    EXPECT_OK(rank.status);
    rank.Keep({0, 0});
    check(rank);
    EXPECT_OK(rank.status) << "no step was cut short";
    rank.Train(0, 1);
    if (&rank == &ranks[1]) rank.Keep({0, 1});
  });
  Together({&ranks[0], &ranks[1]}, check);
  for (const Rank& rank : ranks) EXPECT_OK(rank.status);
  Together({&ranks[1], &ranks[0]}, check);
  for (const Rank& rank : ranks) {
    EXPECT_THAT(rank.status, StatusIs(absl::StatusCode::kDataLoss,
                                      AllOf(HasSubstr("rank 0 was cut short"),
                                            HasSubstr("start the job again"))));
  }
}

// Nothing of it can be kept.
TEST(ElasticShardsTest, AStepThatLibtorchCutsShortTouchesTheParameters) {
  struct Throwing : ::torch::optim::AdamW {
    using AdamW::AdamW;
    ::torch::Tensor step(LossClosure) override {
      throw std::runtime_error("no step");
    }
  };
  Rank ranks[2];
  const Ranks both = {&ranks[0], &ranks[1]};
  Together(both, [](Rank& rank) {
    DistributedDataParallel& ddp = *rank.program->ddp;
    auto sharded = ShardedOptimizer::Create(
        ddp, [](std::vector<::torch::optim::OptimizerParamGroup> groups) {
          return std::make_unique<Throwing>(std::move(groups),
                                            ::torch::optim::AdamWOptions(0.1));
        });
    ASSERT_OK(sharded);
    const MicroBatch micro = ddp.Accumulate();
    ASSERT_OK(ddp.Backward(rank.program->model->Loss(0), micro));
    EXPECT_FALSE((*sharded)->Step().ok());
    EXPECT_THAT(rank.shards.Keep(**sharded, {0, 0}),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("cut short by an error of its own")));
  });
  Together(both, [](Rank& rank) {
    rank.status = rank.shards.CheckUntouched(*rank.communicator);
  });
  for (const Rank& rank : ranks) {
    EXPECT_THAT(rank.status, StatusIs(absl::StatusCode::kDataLoss,
                                      HasSubstr("rank 0 was cut short")));
  }
}

TEST(ElasticShardsTest, AllKnowWhatOneHasLoaded) {
  Rank ranks[2];
  const auto ask = [&](const ShardVersion& version, bool loaded) {
    Together({&ranks[0], &ranks[1]}, [&](Rank& rank) {
      const auto was = rank.shards.WasLoaded(version, *rank.communicator);
      ASSERT_OK(was);
      EXPECT_EQ(*was, loaded);
    });
  };
  ask({7, 3}, false);
  ranks[1].shards.NoteLoaded({7, 3});
  ask({7, 3}, true);
  ask({7, 4}, false);
  ask({6, 3}, false);
}

}  // namespace
}  // namespace coxswain::torch
