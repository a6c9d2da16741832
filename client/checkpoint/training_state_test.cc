#include "client/checkpoint/training_state.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "client/checkpoint/fake_checkpoint_service.h"
#include "client/checkpoint/state_hook_for_test.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/rpc/member_context.h"
#include "gtest/gtest.h"

namespace coxswain::training_state_test {
namespace {

using ::testing::HasSubstr;

// A hook whose state is one tensor per rank.
class StatefulHook : public StateHook {
 public:
  std::string spec() const override { return "stateful"; }
  absl::StatusOr<HookState> SaveState(Communicator& communicator) override {
    HookState state;
    state.spec = spec();
    state.step = step();
    StateTensor tensor;
    tensor.kind = "error";
    tensor.parameter = absl::StrCat("layer", communicator.rank());
    tensor.shape = {1};
    tensor.data = std::string(4, static_cast<char>(communicator.rank()));
    state.tensors.push_back(tensor);
    return state;
  }
  absl::Status LoadState(const HookState&, int, int) override {
    return absl::OkStatus();
  }
};

class StatefulAverager : public Averager {
 public:
  std::string spec() const override { return "stateful_averager"; }
  absl::Status Configure(const std::vector<ParameterSpec>&,
                         const std::vector<Span>&, Communicator&) override {
    return absl::OkStatus();
  }
  absl::Status AfterOptimizerStep(const std::vector<Span>&) override {
    return absl::UnimplementedError("not an averager for training");
  }
  absl::Status AverageNow(const std::vector<Span>&) override {
    return absl::OkStatus();
  }
  int64_t step() const override { return 41; }
  bool averages_next() const override { return false; }
  bool diverged() const override { return apart; }
  bool apart = false;
  absl::StatusOr<HookState> SaveState(Communicator&) override {
    HookState state;
    state.spec = spec();
    state.step = step();
    return state;
  }
  absl::Status LoadState(const HookState&, int, int) override {
    return absl::OkStatus();
  }
};

class TrainingStateTest : public ::testing::Test {
 protected:
  TrainingStateTest() {
    v1::Fence fence;
    fence.set_job("mnist");
    client_ = std::make_unique<CheckpointClient>(
        std::make_shared<MemberContext>(fake_, fence, RetryPolicy()));
  }

  // Saves on `size` ranks, each a thread; returns their results.
  std::vector<absl::Status> Save(int size, int64_t step) {
    const auto world = InProcessWorld::Create(size, absl::Seconds(20));
    std::vector<std::unique_ptr<Communicator>> ranks;
    for (int r = 0; r < size; ++r) ranks.push_back(world->MakeRank(r));
    std::vector<absl::Status> results(size);
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r]() {
        StatefulHook hook;
        hook.needs = needs_averager_;
        StatefulAverager averager;
        averager.apart = apart_;
        results[r] = SaveTrainingState(
            *client_, *ranks[r], step, hook,
            {{"model", absl::StrCat("weights after ", step)}, {"empty", ""}},
            {{"epoch", "2"}}, with_averager_ ? &averager : nullptr);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  bool with_averager_ = false;
  bool needs_averager_ = false;
  bool apart_ = false;
  std::shared_ptr<FakeCoordinatorStub> fake_ =
      std::make_shared<FakeCoordinatorStub>();
  FakeCheckpointService service_{fake_.get()};
  std::unique_ptr<CheckpointClient> client_;
};

TEST_F(TrainingStateTest, ThreeRanksSaveAndAnyRankLoads) {
  for (const absl::Status& result : Save(3, 40)) EXPECT_OK(result);
  ASSERT_OK_AND_ASSIGN(const TrainingState state, LoadTrainingState(*client_));
  EXPECT_EQ(state.step, 40);
  EXPECT_EQ(state.metadata.at("world_size"), "3");
  EXPECT_EQ(state.metadata.at("hook"), "stateful");
  EXPECT_EQ(state.metadata.at("epoch"), "2");
  EXPECT_EQ(state.hook.spec, "stateful");
  EXPECT_EQ(state.hook.tensors.size(), 3u);
  EXPECT_EQ(state.blobs.at("model"), "weights after 40");
  EXPECT_EQ(state.blobs.at("empty"), "");
}

TEST_F(TrainingStateTest, LoadsTheNewestOrTheOneNamed) {
  for (const int64_t step : {10, 20}) {
    for (const absl::Status& result : Save(2, step)) EXPECT_OK(result);
  }
  EXPECT_EQ(LoadTrainingState(*client_)->step, 20);
  EXPECT_EQ(LoadTrainingState(*client_, "step-10")->step, 10);
  EXPECT_THAT(LoadTrainingState(*client_, "step-30"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("step-30")));
}

TEST_F(TrainingStateTest, WithoutACheckpointThereIsNoneToLoad) {
  EXPECT_THAT(LoadTrainingState(*client_),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no complete checkpoint")));
}

TEST_F(TrainingStateTest, AFailedUploadFailsOnAllRanksAndCommitsNothing) {
  service_.upload_error = [](int shard) -> absl::Status {
    if (shard == 1) return absl::ResourceExhaustedError("disk full");
    return absl::OkStatus();
  };
  const std::vector<absl::Status> results = Save(3, 40);
  EXPECT_THAT(results[1], StatusIs(absl::StatusCode::kResourceExhausted,
                                   HasSubstr("disk full")));
  for (const int r : {0, 2}) {
    EXPECT_THAT(results[r], StatusIs(absl::StatusCode::kAborted,
                                     HasSubstr("another rank could not save")));
  }
  EXPECT_FALSE(LoadTrainingState(*client_).ok());
}

TEST_F(TrainingStateTest, AFailedCommitFailsOnAllRanks) {
  service_.commit_error = absl::FailedPreconditionError("shards are missing");
  const std::vector<absl::Status> results = Save(2, 40);
  EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("shards are missing")));
  EXPECT_THAT(results[1],
              StatusIs(absl::StatusCode::kAborted, HasSubstr("commit")));
}

TEST_F(TrainingStateTest, AnAveragersStateComesBackWithTheHooks) {
  with_averager_ = true;
  for (const absl::Status& result : Save(3, 40)) EXPECT_OK(result);
  ASSERT_OK_AND_ASSIGN(const TrainingState state, LoadTrainingState(*client_));
  EXPECT_EQ(state.hook.spec, "stateful");
  EXPECT_EQ(state.averager.spec, "stateful_averager");
  EXPECT_EQ(state.averager.step, 41);
}

TEST_F(TrainingStateTest, AHookIsNotSavedWithoutTheAveragerThatItNeeds) {
  needs_averager_ = true;
  for (const absl::Status& result : Save(2, 40)) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("without its averager")));
  }
  with_averager_ = true;
  for (const absl::Status& result : Save(2, 40)) EXPECT_OK(result);
}

TEST_F(TrainingStateTest, RanksWithDifferentParametersAreNotSaved) {
  with_averager_ = true;
  apart_ = true;
  for (const absl::Status& result : Save(2, 40)) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("AverageNow")));
  }
  EXPECT_FALSE(LoadTrainingState(*client_).ok());
}

TEST(TrainingShardTest, EveryCutIsDataLoss) {
  TrainingShard shard;
  shard.hook.spec = "fp16";
  shard.averager.spec = "diloco";
  shard.blobs = {{"a", "one"}, {"b", "two"}};
  const std::string bytes = SerializeTrainingShard(shard);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(ParseTrainingShard(bytes.substr(0, size)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")))
        << size;
  }
  EXPECT_THAT(ParseTrainingShard(bytes + "x"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("follow")));
  ASSERT_OK_AND_ASSIGN(const TrainingShard parsed, ParseTrainingShard(bytes));
  EXPECT_EQ(parsed.hook.spec, "fp16");
  EXPECT_EQ(parsed.averager.spec, "diloco");
  EXPECT_EQ(parsed.blobs, shard.blobs);
}

TEST(TrainingShardTest, AHugeCountOfBlobsIsDataLossAndNotAHang) {
  std::string bytes = SerializeTrainingShard({});
  for (size_t i = bytes.size() - 8; i < bytes.size(); ++i) bytes[i] = '\xff';
  EXPECT_THAT(ParseTrainingShard(bytes),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("cut off")));
}

}  // namespace
}  // namespace coxswain::training_state_test
