#include "hooks/stats.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/device/emulated/emulated_runtime.h"
#include "client/reduce/hook_state.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/stream_communicator.h"

namespace coxswain::stats_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(30);

// One rank that trains two matrices, one per bucket.
class StatsTest : public testing::Test {
 protected:
  StatsTest() : world_(InProcessWorld::Create(1, kDeadline)) {
    communicator_ = world_->MakeRank(0);
  }

  void Make(const std::string& spec) {
    ASSERT_OK_AND_ASSIGN(hook_, MakeHook(spec));
    ASSERT_OK(hook_->Configure({{"a", {8, 8}, DType::kFloat32, {}, {}},
                                {"b", {8, 8}, DType::kFloat32, {}, {}}},
                               1));
  }

  // Exchanges both buckets without ending the step.
  void Exchange(float value = 1) {
    for (int index = 0; index < 2; ++index) {
      std::vector<float> values(64, value);
      Bucket bucket;
      bucket.index = index;
      bucket.last = index == 1;
      bucket.data = {values.data(), 64, DType::kFloat32, {}};
      bucket.gradients = {{index, 0, 64}};
      ASSERT_OK_AND_ASSIGN(auto exchange,
                           hook_->Prepare(bucket, *communicator_));
      while (true) {
        ASSERT_OK_AND_ASSIGN(const WorkPtr work, exchange->Advance());
        if (work == nullptr) break;
        ASSERT_OK(work->Wait(kDeadline));
      }
    }
  }

  void Steps(int count) {
    for (int step = 0; step < count; ++step) {
      Exchange();
      ASSERT_OK(hook_->Commit());
    }
  }

  std::shared_ptr<InProcessWorld> world_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Hook> hook_;
};

TEST_F(StatsTest, CountsWhatTravels) {
  Make("stats(fp16(allreduce))");
  Steps(3);
  const HookStats stats = StatsOf(*hook_).value();
  EXPECT_EQ(stats.steps, 3);
  EXPECT_EQ(stats.collectives, 3 * 2);
  EXPECT_EQ(stats.payload_bytes, 3 * 2 * 64 * 2);
  EXPECT_EQ(stats.gradient_bytes, 3 * 2 * 64 * 4);
  EXPECT_EQ(stats.ratio(), 2);
  EXPECT_EQ(stats.rolled_back, 0);
  EXPECT_EQ(stats.non_finite, 0);
}

// On a GPU, where a hook need not have waited for the gradients.
TEST(StatsOnDeviceTest, LooksOnceTheGradientsStand) {
  EmulatedRuntime runtime;
  StreamCommunicator rank(InProcessWorld::Create(1)->MakeRank(0), runtime);
  ASSERT_OK_AND_ASSIGN(const DeviceStream caller, runtime.CreateStream());
  ASSERT_OK_AND_ASSIGN(const DeviceEvent ready, runtime.CreateEvent());
  ASSERT_OK_AND_ASSIGN(const auto hook, MakeHook("stats(noop)"));
  ASSERT_OK(hook->Configure({{"a", {2}, DType::kFloat32, {}, {}}}, 1));
  std::vector<float> values(2, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> gradients = {3, 4};
  Bucket bucket;
  bucket.data = {values.data(), 2, DType::kFloat32, runtime.device()};
  bucket.gradients = {{0, 0, 2}};
  bucket.ready = ready;
  runtime.HoldStream(caller);
  ASSERT_OK(runtime.Copy(values.data(), gradients.data(), 8, caller));
  ASSERT_OK(runtime.Record(ready, caller));
  ASSERT_OK_AND_ASSIGN(const auto exchange, hook->Prepare(bucket, rank));
  ASSERT_OK_AND_ASSIGN(const WorkPtr look, exchange->Advance());
  EXPECT_FALSE(look->Done());
  runtime.ReleaseStream(caller);
  ASSERT_OK(look->Wait(kDeadline));
  ASSERT_OK_AND_ASSIGN(const WorkPtr none, exchange->Advance());
  EXPECT_EQ(none, nullptr);
  ASSERT_OK(hook->Commit());
  EXPECT_EQ(StatsOf(*hook).value().non_finite, 0);
  runtime.DestroyEvent(ready);
  runtime.DestroyStream(caller);
}

TEST_F(StatsTest, NothingThatTravelsIsAnInfiniteRatio) {
  Make("stats(noop)");
  Steps(1);
  EXPECT_EQ(StatsOf(*hook_)->payload_bytes, 0);
  EXPECT_EQ(StatsOf(*hook_)->ratio(), std::numeric_limits<double>::infinity());
}

TEST_F(StatsTest, StepsThatAreRolledBackAreCountedApart) {
  Make("stats(allreduce)");
  Steps(1);
  Exchange();
  hook_->Rollback();
  hook_->Rollback();  // of no step
  const HookStats stats = StatsOf(*hook_).value();
  EXPECT_EQ(stats.steps, 1);
  EXPECT_EQ(stats.rolled_back, 1);
  EXPECT_EQ(stats.payload_bytes, 2 * 64 * 4);
  EXPECT_EQ(hook_->step(), 1);
}

TEST_F(StatsTest, NonFiniteStepsAreCountedOnceHoweverTheyEnd) {
  for (const char* spec : {"stats(allreduce)", "stats(fp16)", "stats(bf16)",
                           "stats(powersgd(rank=2,start_step=2))"}) {
    Make(spec);
    Steps(3);
    Exchange(std::numeric_limits<float>::infinity());
    hook_->Rollback();
    Exchange(std::numeric_limits<float>::quiet_NaN());
    ASSERT_OK(hook_->Commit());
    Steps(1);
    EXPECT_EQ(StatsOf(*hook_)->non_finite, 2) << spec;
    EXPECT_EQ(StatsOf(*hook_)->rolled_back, 1) << spec;
  }
}

TEST_F(StatsTest, TheStateIsThatOfTheInnerHook) {
  constexpr char kInner[] = "powersgd(rank=2,start_step=2)";
  const std::string wrapped = std::string("stats(fp16(") + kInner + "))";
  Make(wrapped);
  Steps(4);
  ASSERT_OK_AND_ASSIGN(const HookState with, hook_->SaveState(*communicator_));
  EXPECT_EQ(with.spec, kInner);
  EXPECT_EQ(with.step, 4);
  Make(kInner);
  ASSERT_OK(hook_->LoadState(with, 0, 1));
  EXPECT_EQ(hook_->step(), 4);
  Steps(1);
  ASSERT_OK_AND_ASSIGN(const HookState bare, hook_->SaveState(*communicator_));
  Make(wrapped);
  ASSERT_OK(hook_->LoadState(bare, 0, 1));
  EXPECT_EQ(hook_->step(), 5);
  EXPECT_TRUE(hook_->started());
}

TEST_F(StatsTest, TheLogHasALineEveryFewSteps) {
  Make("stats(every=2,fp16)");
  testing::internal::CaptureStderr();
  Steps(1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  Steps(1);
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("hook_stats"), HasSubstr("hook=fp16"),
            HasSubstr("step=2"), HasSubstr("payload_bytes_per_step=256.0"),
            HasSubstr("collectives_per_step=2.0"), HasSubstr("ratio=2.00"),
            HasSubstr("non_finite_steps=0")));
}

TEST_F(StatsTest, OtherHooksHaveNone) {
  Make("allreduce");
  EXPECT_FALSE(StatsOf(*hook_).has_value());
  Make("fp16(stats(allreduce))");
  EXPECT_FALSE(StatsOf(*hook_).has_value());
}

}  // namespace
}  // namespace coxswain::stats_test
