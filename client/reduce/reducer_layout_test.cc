#include <unistd.h>

#include <fstream>
#include <map>
#include <numeric>

#include "base/status_matchers.h"
#include "client/reduce/reducer_test_support.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A hook whose state is one number, which checkpoints and changes carry.
class StatefulHook : public AverageHook {
 public:
  explicit StatefulHook(std::string spec = "stateful")
      : spec_(std::move(spec)) {}

  std::string spec() const override { return spec_; }
  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    ++configurations_;
    return AverageHook::Configure(parameters, world_size);
  }
  absl::StatusOr<HookState> SaveState(Communicator& communicator) override {
    HookState state;
    state.spec = "stateful";
    state.step = 7;
    StateTensor shard;
    shard.kind = "number";
    shard.parameter = absl::StrCat("rank", communicator.rank());
    shard.shape = {elements_};
    shard.data = std::string(static_cast<size_t>(4 * elements_),
                             static_cast<char>(communicator.rank()));
    state.tensors.push_back(shard);
    return state;
  }
  absl::Status LoadState(const HookState& state, int, int) override {
    if (refuses_) return absl::FailedPreconditionError("another kind of state");
    loaded_ = state;
    return absl::OkStatus();
  }

  void Refuse() { refuses_ = true; }
  void set_elements(int64_t elements) { elements_ = elements; }
  const HookState& loaded() const { return loaded_; }
  int configurations() const { return configurations_; }

 private:
  const std::string spec_;
  HookState loaded_;
  int configurations_ = 0;
  bool refuses_ = false;
  int64_t elements_ = 1;
};

// The same for each rank's own state.
class OwnStateHook : public StatefulHook {
 public:
  using StatefulHook::StatefulHook;

  absl::StatusOr<HookState> SaveOwn() const override { return own_; }
  absl::Status LoadOwn(const HookState& state, double error_scale) override {
    EXPECT_EQ(error_scale, 1);
    own_ = state;
    return absl::OkStatus();
  }
  HookState& own() { return own_; }

 private:
  HookState own_;
};

std::vector<int> OrderOf(const Reducer& reducer) {
  std::vector<int> order;
  for (const Bucket& bucket : reducer.buckets()) {
    for (const GradientSlot& slot : bucket.gradients) {
      order.push_back(slot.parameter);
    }
  }
  return order;
}

// One step in which the gradients come in this order; each is its number.
void Step(Reducer& reducer, const std::vector<int>& order) {
  ASSERT_OK(reducer.BeginStep());
  for (const int parameter : order) {
    Fill(reducer, parameter, static_cast<float>(parameter));
    ASSERT_OK(reducer.MarkReady(parameter));
  }
  ASSERT_OK(reducer.Finish());
  for (const int parameter : order) {
    const float value = static_cast<float>(parameter);
    EXPECT_THAT(Gradient(reducer, parameter),
                ElementsAre(value, value, value, value));
  }
}

// Bytes of this process that the system has given memory to.
int64_t Resident() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(ReducerLayoutTest, BucketsAreZerosThatTakeMemoryOnceTheyAreUsed) {
  constexpr int64_t kElements = 16 << 20;
  constexpr int64_t kHalf = kElements * 4 / 2;
  LoopbackCommunicator communicator;
  // The second one's memory may be what the first one had.
  for (int time = 0; time < 2; ++time) {
    AverageHook hook;
    const int64_t before = Resident();
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(OneBucketEach(), ParametersOf({kElements}), &hook,
                        &communicator));
    EXPECT_LT(Resident() - before, kHalf);
    const Span view = reducer->GradientView(0);
    const float* const data = static_cast<float*>(view.data);
    EXPECT_EQ(std::count(data, data + kElements, 0.0f), kElements);
    Fill(*reducer, 0, 1);
    EXPECT_GT(Resident() - before, kHalf);
  }
}

TEST(ReducerLayoutTest, IsDividedAgainOnceByTheOrderOfRankZero) {
  const std::vector<std::vector<int>> orders = {{0, 2, 1}, {2, 1, 0}};
  OnRanks(2, [&](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = OneBucketEach();
    options.verify = true;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(options, Parameters(3), &hook, communicator));
    EXPECT_THAT(OrderOf(*reducer), ElementsAre(2, 1, 0));
    const int64_t version = reducer->layout_version();
    const std::vector<int>& order = orders[static_cast<size_t>(rank)];
    Step(*reducer, order);
    EXPECT_EQ(reducer->layout_version(), version);
    ASSERT_OK(reducer->Commit());
    EXPECT_EQ(reducer->layout_version(), version + 1);
    EXPECT_TRUE(reducer->layout_frozen());
    EXPECT_THAT(OrderOf(*reducer), ElementsAre(0, 2, 1));
    // What stood in the views was carried over.
    EXPECT_THAT(Gradient(*reducer, 2), ElementsAre(2, 2, 2, 2));
    Step(*reducer, {1, 0, 2});
    ASSERT_OK(reducer->Commit());
    EXPECT_THAT(OrderOf(*reducer), ElementsAre(0, 2, 1));
  });
}

TEST(ReducerLayoutTest, AStepThatIsRolledBackSetsTheOrderToo) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(OneBucketEach(), Parameters(3), &hook, &communicator));
  Step(*reducer, {1, 0, 2});
  reducer->Rollback();
  EXPECT_THAT(OrderOf(*reducer), ElementsAre(1, 0, 2));
}

TEST(ReducerLayoutTest, IsFrozenBeforeTheFirstStepOfAHookThatNeedsIt) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  hook.set_needs_frozen_layout();
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(OneBucketEach(), Parameters(3), &hook, &communicator));
  EXPECT_FALSE(reducer->layout_frozen());
  Step(*reducer, {0, 1, 2});
  EXPECT_TRUE(reducer->layout_frozen());
  ASSERT_OK(reducer->Commit());
  EXPECT_THAT(OrderOf(*reducer), ElementsAre(2, 1, 0));
}

TEST(ReducerLayoutTest, StaysAsItIsWithoutRebuild) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ReducerOptions options = OneBucketEach();
  options.rebuild = false;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(options, Parameters(3), &hook, &communicator));
  Step(*reducer, {0, 1, 2});
  ASSERT_OK(reducer->Commit());
  EXPECT_THAT(OrderOf(*reducer), ElementsAre(2, 1, 0));
}

TEST(ReducerLayoutTest, AViewOutlivesTheLayoutWithItsMemory) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ASSERT_OK_AND_ASSIGN(
      auto reducer,
      Reducer::Create(OneBucketEach(), Parameters(2), &hook, &communicator));
  Fill(*reducer, 0, 5);
  const GradientPlace place = reducer->Place(0);
  ASSERT_OK(reducer->ChangeBuckets({1 << 20, 1 << 20}));
  EXPECT_EQ(reducer->buckets().size(), 1u);
  EXPECT_THAT(Gradient(*reducer, 0), ElementsAre(5, 5, 5, 5));
  Fill(*reducer, 0, 6);
  reducer.reset();
  EXPECT_EQ(*static_cast<const float*>(place.view.data), 5);
}

TEST(ReducerLayoutTest, ParametersComeAndGo) {
  LoopbackCommunicator communicator;
  StatefulHook hook;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(OneBucketEach(), Parameters(3), &hook, &communicator));
  Step(*reducer, {2, 1, 0});
  ASSERT_OK(reducer->Commit());
  std::vector<ParameterSpec> parameters = Parameters(5);
  parameters.erase(parameters.begin());  // p1, p2, p3, p4
  ASSERT_OK(reducer->ChangeParameters(parameters));
  EXPECT_EQ(hook.configurations(), 2);
  EXPECT_THAT(Gradient(*reducer, 0), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(Gradient(*reducer, 1), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(Gradient(*reducer, 2), ElementsAre(0, 0, 0, 0));
  Step(*reducer, {0, 1, 2, 3});
  ASSERT_OK(reducer->Commit());
  EXPECT_THAT(OrderOf(*reducer), ElementsAre(0, 1, 2, 3));
}

TEST(ReducerLayoutTest, NothingChangesInTheMiddleOfAStep) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  AverageHook other;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(OneBucketEach(), Parameters(2), &hook, &communicator));
  ASSERT_OK(reducer->BeginStep());
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("is still being exchanged"));
  EXPECT_THAT(reducer->ChangeBuckets({}), refused);
  EXPECT_THAT(reducer->ChangeParameters(Parameters(3)), refused);
  EXPECT_THAT(reducer->ChangeHook(&other, false), refused);
  ASSERT_OK(reducer->Finish());
  ASSERT_OK(reducer->Commit());
}

TEST(ReducerLayoutTest, BadChangesLeaveTheReducerAsItWas) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(OneBucketEach(), Parameters(2), &hook, &communicator));
  EXPECT_THAT(reducer->ChangeBuckets({0, 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  EXPECT_THAT(reducer->ChangeParameters({}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  Step(*reducer, {1, 0});
  ASSERT_OK(reducer->Commit());
}

TEST(ReducerHookChangeTest, TheNewHookTakesOverTheStateOfAllRanks) {
  OnRanks(3, [](int, Communicator* communicator) {
    StatefulHook old;
    StatefulHook next("wrapped(stateful)");
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(OneBucketEach(), Parameters(2), &old, communicator));
    Step(*reducer, {1, 0});
    ASSERT_OK(reducer->Commit());
    ASSERT_OK(reducer->ChangeHook(&next, /*carry_state=*/true));
    EXPECT_EQ(next.loaded().step, 7);
    ASSERT_EQ(next.loaded().tensors.size(), 3u);
    EXPECT_EQ(next.loaded().tensors[2].data, std::string(4, '\2'));
    Step(*reducer, {1, 0});
    ASSERT_OK(reducer->Commit());
    EXPECT_EQ(old.step(), 1);
    EXPECT_EQ(next.step(), 1);
  });
}

// However much a rank keeps, it is not what other ranks need.
TEST(ReducerHookChangeTest, EachRanksOwnStateStaysOnItAndNothingOfItTravels) {
  OnRanks(3, [](int rank, Communicator* communicator) {
    OwnStateHook old;
    OwnStateHook next("wrapped(stateful)");
    old.own().step = 10 + rank;
    old.own().options["kept"] = std::string(1 << 20, 'x');
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(OneBucketEach(), Parameters(2), &old, communicator));
    const int64_t before = communicator->payload_bytes();
    ASSERT_OK(reducer->ChangeHook(&next, /*carry_state=*/true));
    EXPECT_LE(communicator->payload_bytes() - before, 64);
    EXPECT_EQ(next.own().step, 10 + rank);
    EXPECT_EQ(next.own().options, old.own().options);
    EXPECT_TRUE(next.loaded().tensors.empty());
  });
}

TEST(ReducerHookChangeTest, AMergedStateBeyondTheBoundIsRefusedOnAllRanks) {
  OnRanks(3, [](int, Communicator* communicator) {
    StatefulHook old;
    StatefulHook next;
    // Each shard fits, and all together do not.
    old.set_elements(6 << 20);
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(OneBucketEach(), Parameters(2), &old, communicator));
    const int64_t before = communicator->payload_bytes();
    EXPECT_THAT(reducer->ChangeHook(&next, /*carry_state=*/true),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("ranks 0 to 2 of 3 offer")));
    EXPECT_LE(communicator->payload_bytes() - before, 64);
    Step(*reducer, {1, 0});
    ASSERT_OK(reducer->Commit());
    EXPECT_EQ(old.step(), 1);
  });
}

TEST(ReducerHookChangeTest, ARefusalOnOneRankLeavesTheOldHookOnAll) {
  OnRanks(3, [](int rank, Communicator* communicator) {
    StatefulHook old;
    StatefulHook next;
    if (rank == 1) next.Refuse();
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(OneBucketEach(), Parameters(2), &old, communicator));
    EXPECT_THAT(
        reducer->ChangeHook(&next, /*carry_state=*/true),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 HasSubstr(rank == 1 ? "another kind of state"
                                     : "1 other ranks of 3 could not")));
    Step(*reducer, {1, 0});
    ASSERT_OK(reducer->Commit());
    EXPECT_EQ(old.step(), 1);
    EXPECT_EQ(next.step(), 0);
  });
}

TEST(ReducerHookChangeTest, WithoutTheStateTheNewHookBeginsFromNothing) {
  LoopbackCommunicator communicator;
  StatefulHook old;
  StatefulHook next;
  next.Refuse();
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(OneBucketEach(), Parameters(2), &old, &communicator));
  ASSERT_OK(reducer->ChangeHook(&next, /*carry_state=*/false));
  EXPECT_EQ(next.configurations(), 1);
  Step(*reducer, {1, 0});
}

TEST(ReducerAgreementTest, RanksThatDifferGetAnErrorBeforeAnythingIsSent) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = OneBucketEach();
    options.verify = true;
    std::vector<ParameterSpec> parameters = Parameters(2);
    if (rank == 1) parameters[0].shape = {4, 1};
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(options, parameters, &hook, communicator));
    ASSERT_OK(reducer->BeginStep());
    for (const int parameter : {1, 0}) (void)reducer->MarkReady(parameter);
    const absl::Status status = reducer->Finish();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("\"p0\": float32 [4, 1]")));
    EXPECT_THAT(hook.log().events(), ElementsAre());
    EXPECT_EQ(reducer->BeginStep(), status);
  });
}

TEST(ReducerAgreementTest, SettingsCountToo) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = OneBucketEach();
    options.verify = true;
    options.settings["seed"] = absl::StrCat(rank);
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(options, Parameters(1), &hook, communicator));
    EXPECT_THAT(
        reducer->BroadcastFromRoot({}),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("seed 1")));
  });
}

TEST(ReducerAgreementTest, IsAskedForAgainAfterAChange) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = OneBucketEach();
    options.verify = true;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(options, Parameters(2), &hook, communicator));
    Step(*reducer, {1, 0});
    ASSERT_OK(reducer->Commit());
    ASSERT_OK(reducer->ChangeBuckets({1, rank == 0 ? 100 : 200}));
    EXPECT_THAT(reducer->BroadcastFromRoot({}),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("bucket_bytes 200")));
  });
}

}  // namespace
}  // namespace coxswain
