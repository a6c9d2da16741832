// A checkpoint that is saved from copies while training goes on is the one that
// would have been saved at once, bit for bit, for every hook.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "client/checkpoint/async_checkpoint.h"
#include "client/checkpoint/fake_checkpoint_service.h"
#include "client/checkpoint/training_state.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/rpc/member_context.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/hook_world.h"
#include "tests/hooks/every_hook.h"

namespace coxswain {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kSteps = 3;

std::vector<ParameterSpec> Parameters() {
  return {NamedParameter("wide", {6, 20}),
          NamedParameter("bias", {7}),
          NamedParameter("tall", {24, 5}),
          NamedParameter("scalar", {}),
          NamedParameter("double", {9, 11}, DType::kFloat64),
          NamedParameter("doubles", {5}, DType::kFloat64)};
}

HookMaker Maker(const std::string& spec) {
  return [spec] { return MakeHook(spec); };
}

void Step(const AnyHook& hook, HookWorld& world, int64_t step) {
  const auto local = AllGradients(Parameters(), 78, world.size(), step);
  if (hook.ranks_differ) {
    world.ExchangeApart(local);
  } else {
    world.Exchange(local);
  }
  world.Commit();
}

HookWorld Trained(const AnyHook& hook, int size) {
  HookWorld world(hook.spec, Parameters(), size);
  for (int64_t step = 0; step < hook.start_step + kSteps; ++step) {
    Step(hook, world, step);
  }
  return world;
}

// One for each rank, with the averager that the hook may need.
class Averagers {
 public:
  Averagers(const std::string& spec, int size)
      : world_(InProcessWorld::Create(size, kTimeout)),
        averagers_(static_cast<size_t>(size)),
        values_(static_cast<size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) {
      communicators_.push_back(world_->MakeRank(rank));
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([this, rank, &spec] { Make(rank, spec); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  Averager* of(int rank) { return averagers_[static_cast<size_t>(rank)].get(); }

 private:
  void Make(int rank, const std::string& spec) {
    const auto index = static_cast<size_t>(rank);
    auto made = MakeAverager(spec);
    ASSERT_OK(made);
    if (*made == nullptr) return;
    std::vector<Span> spans;
    for (const ParameterSpec& parameter : Parameters()) {
      auto& values = values_[index].emplace_back(
          static_cast<size_t>(parameter.count()), 0.25);
      spans.push_back(
          Span{values.data(), parameter.count(), parameter.dtype, Device{}});
    }
    ASSERT_OK((*made)->Configure(Parameters(), spans, *communicators_[index]));
    averagers_[index] = *std::move(made);
  }

  std::shared_ptr<InProcessWorld> world_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<Averager>> averagers_;
  std::vector<std::vector<std::vector<double>>> values_;
};

class AsyncCheckpointTest : public testing::TestWithParam<AnyHook> {
 protected:
  AsyncCheckpointTest() {
    v1::Fence fence;
    fence.set_job("job");
    client_ = std::make_unique<CheckpointClient>(
        std::make_shared<MemberContext>(fake_, fence, RetryPolicy()));
  }

  void SaveAtOnce(HookWorld& world, Averagers& averagers, int64_t step) {
    const auto meeting = InProcessWorld::Create(world.size(), kTimeout);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto communicator = meeting->MakeRank(rank);
        EXPECT_OK(SaveTrainingState(*client_, *communicator, step,
                                    world.hook(rank), {{"model", "weights"}},
                                    {}, averagers.of(rank)));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  AsyncCheckpoint::Source SourceOf(HookWorld& world, Averagers& averagers,
                                   int rank, int64_t step) {
    AsyncCheckpoint::Source source;
    source.step = step;
    source.hook = &world.hook(rank);
    source.averager = averagers.of(rank);
    source.make_hook = Maker(GetParam().spec);
    source.parameters = Parameters();
    source.fill_blobs = [](AsyncCheckpoint::Blobs* blobs) {
      (*blobs)["model"] = "weights";
      return absl::OkStatus();
    };
    return source;
  }

  std::shared_ptr<FakeCoordinatorStub> fake_ =
      std::make_shared<FakeCoordinatorStub>();
  FakeCheckpointService service_{fake_.get()};
  std::unique_ptr<CheckpointClient> client_;
};

TEST_P(AsyncCheckpointTest, IsTheOneThatSavingAtOnceMakes) {
  for (const int size : {1, 3}) {
    HookWorld world = Trained(GetParam(), size);
    Averagers averagers(GetParam().spec, size);
    const auto meeting = InProcessWorld::Create(size, kTimeout);
    SaveAtOnce(world, averagers, 10 * size);
    std::vector<std::unique_ptr<AsyncCheckpoint>> savers;
    for (int rank = 0; rank < size; ++rank) {
      AsyncCheckpoint::Options options;
      options.rank = rank;
      options.world_size = size;
      options.connect = [&meeting, rank](int) {
        return std::shared_ptr<Communicator>(meeting->MakeRank(rank));
      };
      savers.push_back(std::make_unique<AsyncCheckpoint>(*client_, options));
      EXPECT_OK(savers.back()->Snapshot(
          SourceOf(world, averagers, rank, 10 * size + 1)));
    }
    // Training goes on meanwhile.
    Step(GetParam(), world, GetParam().start_step + kSteps);
    for (const auto& saver : savers) EXPECT_OK(saver->Finish(kTimeout));
    const std::string at_once = absl::StrCat("step-", 10 * size);
    const std::string later = absl::StrCat("step-", 10 * size + 1);
    for (int shard = 0; shard < size; ++shard) {
      EXPECT_TRUE(client_->LoadShard(at_once, shard).value() ==
                  client_->LoadShard(later, shard).value())
          << "shard " << shard << " of " << size;
    }
    EXPECT_EQ(LoadTrainingState(*client_, at_once)->metadata,
              LoadTrainingState(*client_, later)->metadata);
  }
}

TEST_P(AsyncCheckpointTest, OwnStatesHaveTheMeanThatRanksWouldHaveSaved) {
  HookWorld world = Trained(GetParam(), 3);
  std::vector<HookState> own;
  for (int rank = 0; rank < 3; ++rank) own.push_back(world.SaveOwn(rank));
  ASSERT_OK_AND_ASSIGN(
      const HookState mean,
      MeanOfOwnStates(own, Parameters(), Maker(GetParam().spec)));
  EXPECT_TRUE(SerializeHookState(mean) == SerializeHookState(world.Save()));
}

INSTANTIATE_TEST_SUITE_P(Hooks, AsyncCheckpointTest,
                         testing::ValuesIn(EveryHook()), AnyHookName);

}  // namespace
}  // namespace coxswain
