#include "client/checkpoint/async_checkpoint.h"

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/checkpoint/fake_checkpoint_service.h"
#include "client/checkpoint/state_hook_for_test.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/rpc/member_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(20);

// A hook whose state is one error; a shard has the mean of all of them.
class MeanHook : public StateHook {
 public:
  explicit MeanHook(float error = 0) : error_(error) {}

  std::string spec() const override { return "mean"; }
  float error() const { return error_; }

  absl::StatusOr<HookState> SaveOwn() const override {
    if (error_ < 0) return absl::DataLossError("its memory is gone");
    return StateOf("own_error", error_);
  }
  absl::Status LoadOwn(const HookState& state, double scale) override {
    error_ = static_cast<float>(scale) * ValueOf(state);
    return absl::OkStatus();
  }
  absl::StatusOr<HookState> SaveState(Communicator& communicator) override {
    float sum = error_;
    const WorkPtr work = communicator.AllReduce(
        Span{&sum, 1, DType::kFloat32, Device{}}, ReduceOp::kSum);
    absl::Status status = work->Wait(kTimeout);
    if (!status.ok()) return status;
    HookState state =
        StateOf("error", sum / static_cast<float>(communicator.size()));
    if (communicator.rank() != 0) state.tensors.clear();
    return state;
  }
  absl::Status LoadState(const HookState& state, int, int) override {
    error_ = ValueOf(state);
    return absl::OkStatus();
  }

 private:
  HookState StateOf(const std::string& kind, float error) const {
    HookState state;
    state.spec = spec();
    state.step = step();
    StateTensor& tensor = state.tensors.emplace_back();
    tensor.kind = kind;
    tensor.parameter = "weight";
    tensor.shape = {1};
    tensor.data.assign(reinterpret_cast<const char*>(&error), sizeof(error));
    return state;
  }
  static float ValueOf(const HookState& state) {
    float error = 0;
    std::memcpy(&error, state.tensors.at(0).data.data(), sizeof(error));
    return error;
  }

  float error_;
};

// One of two elements: the front, or the back.
HookParameter WeightOf(absl::string_view part) {
  ParameterSpec spec;
  spec.name = "weight";
  spec.shape = {1};
  const int64_t begin = part == "back" ? 1 : 0;
  return {spec, {{2}, {{begin}, {begin + 1}}}};
}

HookMaker MakeMeanHook() {
  return []() -> absl::StatusOr<std::unique_ptr<Hook>> {
    return std::make_unique<MeanHook>();
  };
}

// Where the ranks of a test meet.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}
  absl::StatusOr<std::shared_ptr<Communicator>> Connect(int rank, int number) {
    MutexLock lock(&mutex_);
    auto& world = worlds_[number];
    if (world == nullptr) world = InProcessWorld::Create(size_, kTimeout);
    ++connections_;
    return std::shared_ptr<Communicator>(world->MakeRank(rank));
  }
  int connections() const {
    MutexLock lock(&mutex_);
    return connections_;
  }

 private:
  const int size_;
  mutable Mutex mutex_;
  std::map<int, std::shared_ptr<InProcessWorld>> worlds_
      ABSL_GUARDED_BY(mutex_);
  int connections_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Closed until it is opened.
class Door {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    changed_.NotifyAll();
  }
  void Pass() {
    MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, kTimeout,
                     [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return open_; });
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

class AsyncCheckpointTest : public ::testing::Test {
 protected:
  AsyncCheckpointTest() {
    v1::Fence fence;
    fence.set_job("mnist");
    client_ = std::make_unique<CheckpointClient>(
        std::make_shared<MemberContext>(fake_, fence, RetryPolicy()));
  }

  void Start(int size, bool own_errors = false) {
    meeting_ = std::make_unique<Meeting>(size);
    {
      MutexLock lock(&mutex_);
      reports_.resize(static_cast<size_t>(size));
    }
    for (int rank = 0; rank < size; ++rank) {
      AsyncCheckpoint::Options options;
      options.rank = rank;
      options.world_size = size;
      options.own_errors = own_errors;
      options.timeout = timeout_;
      options.retention.keep_last = 3;
      options.retention.keep_every = 100;
      options.connect = [this, rank](int number) {
        return meeting_->Connect(rank, number);
      };
      options.on_report = [this, rank](const SaveReport& report) {
        MutexLock lock(&mutex_);
        reports_[static_cast<size_t>(rank)].push_back(report);
      };
      ranks_.push_back(std::make_unique<AsyncCheckpoint>(*client_, options));
    }
  }

  absl::Status Snapshot(int rank, int64_t step, float error) {
    const MeanHook hook(error);
    AsyncCheckpoint::Source source;
    source.step = step;
    source.reason = "the test said so";
    source.metadata = {{"epoch", "2"}};
    if (!hook_parts_.empty()) {
      source.metadata[kHookPartsLabel] = hook_parts_;
      const std::vector<std::string> parts = absl::StrSplit(hook_parts_, ',');
      source.parameters = {WeightOf(parts[static_cast<size_t>(rank)]).spec};
      source.boxes = {
          {"weight", WeightOf(parts[static_cast<size_t>(rank)]).box}};
    }
    source.hook = &hook;
    source.make_hook = MakeMeanHook();
    source.fill_blobs = [step](AsyncCheckpoint::Blobs* blobs) {
      (*blobs)["model"] = absl::StrCat("weights after ", step);
      return absl::OkStatus();
    };
    return ranks_[static_cast<size_t>(rank)]->Snapshot(source);
  }
  // Rank r's error is r + 1.
  void SnapshotAll(int64_t step) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      EXPECT_OK(
          Snapshot(static_cast<int>(rank), step, static_cast<float>(rank) + 1));
    }
  }
  absl::Status Finish(int rank) {
    return ranks_[static_cast<size_t>(rank)]->Finish(kTimeout);
  }
  std::vector<SaveReport> reports(int rank) {
    MutexLock lock(&mutex_);
    return reports_[static_cast<size_t>(rank)];
  }

  std::shared_ptr<FakeCoordinatorStub> fake_ =
      std::make_shared<FakeCoordinatorStub>();
  FakeCheckpointService service_{fake_.get()};
  std::unique_ptr<CheckpointClient> client_;
  std::unique_ptr<Meeting> meeting_;
  absl::Duration timeout_ = absl::Minutes(15);
  std::string hook_parts_;
  Mutex mutex_;
  std::vector<std::vector<SaveReport>> reports_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<AsyncCheckpoint>> ranks_;  // ends first
};

TEST_F(AsyncCheckpointTest, SavesTheMeanAndTheBlobs) {
  Start(3);
  SnapshotAll(40);
  for (int rank : {0, 1, 2}) EXPECT_OK(Finish(rank));
  ASSERT_OK_AND_ASSIGN(const TrainingState state, LoadTrainingState(*client_));
  EXPECT_EQ(state.step, 40);
  EXPECT_EQ(state.metadata.at("hook"), "mean");
  EXPECT_EQ(state.metadata.at("world_size"), "3");
  EXPECT_EQ(state.metadata.at("epoch"), "2");
  EXPECT_EQ(state.blobs.at("model"), "weights after 40");
  MeanHook hook;
  EXPECT_OK(LoadHook(state, {0, 5}, {}, MakeMeanHook(), hook));
  EXPECT_EQ(hook.error(), 2);
  EXPECT_EQ(meeting_->connections(), 3);
  EXPECT_EQ(service_.committed.keep_last(), 3);
  EXPECT_EQ(service_.committed.keep_every(), 100);
  EXPECT_EQ(reports(1).at(0).checkpoint_id, state.checkpoint_id);
  EXPECT_EQ(reports(1).at(0).reason, "the test said so");
}

TEST_F(AsyncCheckpointTest, TheLogHasTheIdsEarlierNameBesideTheNewOne) {
  Start(1);
  testing::internal::CaptureStderr();
  SnapshotAll(40);
  EXPECT_OK(Finish(0));
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string id = reports(0).at(0).checkpoint_id;
  EXPECT_THAT(log,
              HasSubstr(absl::StrCat(" checkpoint=", id, " id=", id, " ")));
}

TEST_F(AsyncCheckpointTest, EqualsTheCheckpointOfASynchronousSave) {
  Start(3);
  SnapshotAll(40);
  for (int rank : {0, 1, 2}) EXPECT_OK(Finish(rank));
  const auto world = InProcessWorld::Create(3, kTimeout);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto communicator = world->MakeRank(rank);
      MeanHook hook(static_cast<float>(rank) + 1);
      EXPECT_OK(SaveTrainingState(*client_, *communicator, 41, hook,
                                  {{"model", "weights after 40"}},
                                  {{"epoch", "2"}}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int shard : {0, 1, 2}) {
    EXPECT_EQ(client_->LoadShard("step-40", shard).value(),
              client_->LoadShard("step-41", shard).value())
        << shard;
  }
  EXPECT_EQ(LoadTrainingState(*client_, "step-40")->metadata,
            LoadTrainingState(*client_, "step-41")->metadata);
}

TEST_F(AsyncCheckpointTest, TrainingContinuesAndTheNewestSnapshotWaits) {
  Start(2);
  Door upload;
  service_.upload_error = [&upload](int) {
    upload.Pass();
    return absl::OkStatus();
  };
  SnapshotAll(10);
  for (const int64_t step : {20, 30, 40}) SnapshotAll(step);
  EXPECT_THAT(ranks_[0]->Finish(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("not been saved within 1ms")));
  EXPECT_TRUE(ranks_[0]->busy());
  upload.Open();
  for (int rank : {0, 1}) EXPECT_OK(Finish(rank));
  EXPECT_EQ(LoadTrainingState(*client_)->step, 40);
  EXPECT_EQ(LoadTrainingState(*client_, "step-20").status().code(),
            absl::StatusCode::kNotFound);
  bool superseded = false;
  for (const SaveReport& report : reports(0)) {
    superseded |= absl::IsCancelled(report.status);
  }
  EXPECT_TRUE(superseded);
}

// What each rank has when it is ready differs, and one step is saved.
TEST_F(AsyncCheckpointTest, RanksThatHaveDifferentStepsMeetAtTheNewest) {
  Start(2);
  for (const int64_t step : {10, 20, 30}) {
    EXPECT_OK(Snapshot(0, step, 1));
  }
  for (const int64_t step : {10, 20, 30}) {
    EXPECT_OK(Snapshot(1, step, 3));
  }
  for (int rank : {0, 1}) EXPECT_OK(Finish(rank));
  ASSERT_OK_AND_ASSIGN(const TrainingState state, LoadTrainingState(*client_));
  EXPECT_EQ(state.step, 30);
  MeanHook hook;
  EXPECT_OK(hook.LoadState(state.hook, 0, 2));
  EXPECT_EQ(hook.error(), 2);
}

TEST_F(AsyncCheckpointTest, ARankThatCannotCopyFailsTheSaveOfAll) {
  Start(3);
  EXPECT_OK(Snapshot(0, 10, 1));
  EXPECT_THAT(Snapshot(1, 10, -1),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("memory")));
  EXPECT_OK(Snapshot(2, 10, 1));
  EXPECT_THAT(Finish(1), StatusIs(absl::StatusCode::kDataLoss, _));
  for (int rank : {0, 2}) {
    EXPECT_THAT(Finish(rank),
                StatusIs(absl::StatusCode::kAborted,
                         HasSubstr("another rank could not copy step 10")));
  }
  SnapshotAll(20);
  for (int rank : {0, 1, 2}) EXPECT_OK(Finish(rank));
  EXPECT_EQ(LoadTrainingState(*client_)->step, 20);
}

TEST_F(AsyncCheckpointTest, AFailedUploadIsNoCheckpointAndTheNextOneIs) {
  Start(2);
  service_.upload_error = [](int shard) -> absl::Status {
    if (shard == 1) return absl::ResourceExhaustedError("disk full");
    return absl::OkStatus();
  };
  SnapshotAll(10);
  EXPECT_THAT(Finish(1), StatusIs(absl::StatusCode::kResourceExhausted,
                                  HasSubstr("disk full")));
  EXPECT_THAT(Finish(0), StatusIs(absl::StatusCode::kAborted,
                                  HasSubstr("could not save its shard")));
  EXPECT_EQ(ranks_[0]->status().code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(LoadTrainingState(*client_).ok());
  EXPECT_THAT(service_.deleted, ::testing::ElementsAre("step-10"))
      << "it would stay open, and the job may have few of those";
  service_.upload_error = nullptr;
  SnapshotAll(20);
  for (int rank : {0, 1}) EXPECT_OK(Finish(rank));
}

TEST_F(AsyncCheckpointTest, WhatARestartedCoordinatorLacksIsUploadedAgain) {
  Start(2);
  service_.restarts = 2;
  SnapshotAll(10);
  for (int rank : {0, 1}) EXPECT_OK(Finish(rank));
  ASSERT_OK_AND_ASSIGN(const TrainingState state, LoadTrainingState(*client_));
  EXPECT_EQ(state.step, 10);
  service_.restarts = 3;
  SnapshotAll(20);
  EXPECT_THAT(Finish(0), StatusIs(absl::StatusCode::kFailedPrecondition,
                                  HasSubstr("shards are missing")));
  EXPECT_THAT(Finish(1), StatusIs(absl::StatusCode::kAborted,
                                  HasSubstr("could not commit")));
}

// Rank 1 has reported step 20, and has none that is newer.
TEST_F(AsyncCheckpointTest, ARankThatReceivesNoNewerCopyReportsItsOwn) {
  timeout_ = absl::Milliseconds(50);
  Start(2);
  EXPECT_OK(Snapshot(0, 10, 1));
  EXPECT_OK(Snapshot(1, 20, 1));
  EXPECT_THAT(Finish(0), StatusIs(absl::StatusCode::kAborted,
                                  HasSubstr("no copy of a step after 10")));
  ASSERT_EQ(reports(0).size(), 1u);
  EXPECT_EQ(reports(0)[0].step, 10);
}

TEST_F(AsyncCheckpointTest, ItsEndDoesNotWaitForRanksThatNeverCome) {
  Start(2);
  EXPECT_OK(Snapshot(0, 10, 1));
  ranks_.clear();
  EXPECT_FALSE(LoadTrainingState(*client_).ok());
}

TEST_F(AsyncCheckpointTest, OwnErrorsAreResumedBitByBitOrAsTheirMean) {
  Start(3, /*own_errors=*/true);
  SnapshotAll(40);
  for (int rank : {0, 1, 2}) EXPECT_OK(Finish(rank));
  for (int rank = 0; rank < 3; ++rank) {
    const TrainingRank same{rank, 3};
    ASSERT_OK_AND_ASSIGN(const TrainingState state,
                         LoadTrainingState(*client_, "", same));
    ASSERT_EQ(state.own.size(), 3u);
    EXPECT_EQ(state.own[rank == 1 ? 2 : 1].spec, "") << "nobody needs it";
    MeanHook hook;
    EXPECT_OK(LoadHook(state, same, {}, MakeMeanHook(), hook));
    EXPECT_EQ(hook.error(), static_cast<float>(rank) + 1);
    EXPECT_EQ(state.blobs.at("model"), "weights after 40");
  }
  const TrainingRank other{0, 2};
  ASSERT_OK_AND_ASSIGN(const TrainingState state,
                       LoadTrainingState(*client_, "", other));
  MeanHook hook;
  EXPECT_OK(LoadHook(state, other, {}, MakeMeanHook(), hook));
  EXPECT_EQ(hook.error(), 2);
}

TEST_F(AsyncCheckpointTest, OwnErrorsOfAPartAreThoseOfItsRanks) {
  hook_parts_ = "front,back,front,back";
  Start(4, /*own_errors=*/true);
  SnapshotAll(40);
  for (int rank : {0, 1, 2, 3}) EXPECT_OK(Finish(rank));
  const auto load = [&](const TrainingRank& reader) {
    const auto state = LoadTrainingState(*client_, "", reader);
    EXPECT_OK(state);
    EXPECT_TRUE(state->of_part);
    EXPECT_EQ(state->own.size(), 2u);
    EXPECT_EQ(state->blobs.at("model"), "weights after 40");
    MeanHook hook;
    EXPECT_OK(LoadHook(*state, reader, {}, MakeMeanHook(), hook));
    return hook.error();
  };
  EXPECT_EQ(load({0, 2, "front"}), 1);
  EXPECT_EQ(load({1, 2, "front"}), 3);
  EXPECT_EQ(load({0, 2, "back"}), 2);
  EXPECT_EQ(load({1, 2, "back"}), 4);
  EXPECT_EQ(load({0, 1, "back"}), 3) << "the mean";
  for (const std::string part : {"middle", ""}) {
    ASSERT_OK_AND_ASSIGN(const TrainingState state,
                         LoadTrainingState(*client_, "", {0, 4, part}));
    EXPECT_FALSE(state.of_part);
    EXPECT_TRUE(state.own.empty());
    EXPECT_TRUE(state.parts.empty());
    EXPECT_EQ(state.hook.tensors.size(), 1u);
  }
}

TEST_F(AsyncCheckpointTest, WhatWasCutOtherwiseIsCutFromThePartsThatHaveIt) {
  hook_parts_ = "front,back,front,back";
  Start(4, /*own_errors=*/true);
  SnapshotAll(40);
  for (int rank : {0, 1, 2, 3}) EXPECT_OK(Finish(rank));
  for (const auto& [part, mean] :
       std::vector<std::pair<std::string, float>>{{"front", 2}, {"back", 3}}) {
    const TrainingRank reader{0, 3, "another", {WeightOf(part)}};
    ASSERT_OK_AND_ASSIGN(const TrainingState state,
                         LoadTrainingState(*client_, "", reader));
    EXPECT_FALSE(state.of_part);
    ASSERT_EQ(state.parts.size(), 1u) << "nothing is needed of the other one";
    EXPECT_EQ(state.parts[0].states.size(), 2u);
    EXPECT_EQ(state.hook.step, 40);
    ASSERT_EQ(state.blobs.size(), 1u) << "descriptions are no blobs";
    MeanHook hook;
    EXPECT_OK(
        LoadHook(state, reader, {WeightOf(part).spec}, MakeMeanHook(), hook));
    EXPECT_EQ(hook.error(), mean);
  }
}

TEST_F(AsyncCheckpointTest, AMeanOfAllIsCutForThoseWithParts) {
  Start(3);
  SnapshotAll(40);
  for (int rank : {0, 1, 2}) EXPECT_OK(Finish(rank));
  ParameterSpec weight;
  weight.name = "weight";
  weight.shape = {1};
  const TrainingRank reader{0, 2, "a part", HookParametersOf({weight}, {})};
  ASSERT_OK_AND_ASSIGN(const TrainingState state,
                       LoadTrainingState(*client_, "", reader));
  EXPECT_FALSE(state.of_part);
  ASSERT_EQ(state.parts.size(), 1u);
  MeanHook hook;
  EXPECT_OK(LoadHook(state, reader, {weight}, MakeMeanHook(), hook));
  EXPECT_EQ(hook.error(), 2);
}

TEST_F(AsyncCheckpointTest, AHookWithoutItsAveragerIsRefused) {
  Start(1);
  MeanHook hook(1);
  hook.needs = true;
  AsyncCheckpoint::Source source;
  source.hook = &hook;
  source.make_hook = MakeMeanHook();
  EXPECT_THAT(
      ranks_[0]->Snapshot(source),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("averager")));
  EXPECT_FALSE(Finish(0).ok());
}

}  // namespace
}  // namespace coxswain
