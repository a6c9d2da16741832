#include "client/comm/held/held_communicator.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "tests/conformance/communicator_conformance.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(20);

// Opened, it is like what it wraps.
CommunicatorCase ReleasedCase() {
  CommunicatorCase result;
  result.name = "OpenGate";
  result.sizes = {1};
  result.waits = false;
  result.make_group = [](int, absl::Duration) {
    auto held = std::make_unique<HeldCommunicator>(
        std::make_unique<LoopbackCommunicator>());
    held->Open();
    std::vector<std::unique_ptr<Communicator>> group;
    group.push_back(std::move(held));
    return group;
  };
  return result;
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorConformance,
                         testing::Values(ReleasedCase()), CaseName);

class HeldCommunicatorTest : public testing::Test {
 protected:
  HeldCommunicatorTest()
      : held_(std::make_unique<LoopbackCommunicator>()), data_(100) {
    span_.data = data_.data();
    span_.count = 100;
  }

  HeldCommunicator held_;
  std::vector<float> data_;
  Span span_;
};

TEST_F(HeldCommunicatorTest, HoldsUntilReleased) {
  const WorkPtr first = held_.AllReduce(span_);
  const WorkPtr second = held_.Barrier();
  EXPECT_FALSE(first->Done());
  EXPECT_EQ(held_.held(), 2);
  held_.Release(1);
  EXPECT_OK(first->Wait(kSoon));
  EXPECT_FALSE(second->Done());
  held_.Open();
  EXPECT_OK(second->Wait(kSoon));
  EXPECT_OK(held_.Barrier()->Wait(kSoon));
}

TEST_F(HeldCommunicatorTest, ReleaseCountsForLaunchesToCome) {
  held_.Release(1);
  EXPECT_OK(held_.Barrier()->Wait(kSoon));
  EXPECT_FALSE(held_.Barrier()->Done());
}

TEST_F(HeldCommunicatorTest, RecordsLaunches) {
  std::thread launcher([&] {
    held_.AllReduce(span_);
    held_.Broadcast(span_, 0);
  });
  EXPECT_TRUE(held_.AwaitLaunches(2, kSoon));
  launcher.join();
  EXPECT_FALSE(held_.AwaitLaunches(3, absl::ZeroDuration()));
  const auto launches = held_.launches();
  EXPECT_EQ(launches[0].kind, "all-reduce");
  EXPECT_EQ(launches[0].count, 100);
  EXPECT_EQ(launches[1].kind, "broadcast");
}

TEST_F(HeldCommunicatorTest, FailsTheChosenOperation) {
  held_.Fail(1, absl::UnavailableError("the line is dead"));
  held_.Open();
  EXPECT_OK(held_.AllReduce(span_)->Wait(kSoon));
  EXPECT_THAT(held_.AllReduce(span_)->Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "the line is dead"));
  EXPECT_THAT(held_.AllReduce(span_)->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the line")));
}

TEST_F(HeldCommunicatorTest, AbortEndsWhatIsHeld) {
  const WorkPtr work = held_.AllReduce(span_);
  held_.Abort("enough");
  EXPECT_THAT(work->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "enough"));
}

TEST_F(HeldCommunicatorTest, ASplitCommunicatorHoldsWhatItsParentHolds) {
  ASSERT_OK_AND_ASSIGN(const auto held, held_.Split({0}));
  const WorkPtr work = held->AllReduce(span_);
  EXPECT_FALSE(work->Done());
  auto* copy = dynamic_cast<HeldCommunicator*>(held.get());
  ASSERT_NE(copy, nullptr);
  copy->Release(1);
  EXPECT_OK(work->Wait(kSoon));
  const WorkPtr barrier = held->Barrier();
  held_.Abort("enough");
  EXPECT_THAT(barrier->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
}

}  // namespace
}  // namespace coxswain
