#include "client/comm/gated/gated_communicator.h"

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

// With its gate open it is like what it wraps.
CommunicatorCase OpenGateCase() {
  CommunicatorCase result;
  result.name = "OpenGate";
  result.sizes = {1};
  result.waits = false;
  result.make_group = [](int, absl::Duration) {
    auto gated = std::make_unique<GatedCommunicator>(
        std::make_unique<LoopbackCommunicator>());
    gated->Open();
    std::vector<std::unique_ptr<Communicator>> group;
    group.push_back(std::move(gated));
    return group;
  };
  return result;
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorConformance,
                         testing::Values(OpenGateCase()), CaseName);

class GatedCommunicatorTest : public testing::Test {
 protected:
  GatedCommunicatorTest()
      : gated_(std::make_unique<LoopbackCommunicator>()), data_(100) {
    span_.data = data_.data();
    span_.count = 100;
  }

  GatedCommunicator gated_;
  std::vector<float> data_;
  Span span_;
};

TEST_F(GatedCommunicatorTest, HoldsUntilReleased) {
  const WorkPtr first = gated_.AllReduce(span_);
  const WorkPtr second = gated_.Barrier();
  EXPECT_FALSE(first->Done());
  EXPECT_EQ(gated_.held(), 2);
  gated_.Release(1);
  EXPECT_OK(first->Wait(kSoon));
  EXPECT_FALSE(second->Done());
  gated_.Open();
  EXPECT_OK(second->Wait(kSoon));
  EXPECT_OK(gated_.Barrier()->Wait(kSoon));
}

TEST_F(GatedCommunicatorTest, ReleaseCountsForLaunchesToCome) {
  gated_.Release(1);
  EXPECT_OK(gated_.Barrier()->Wait(kSoon));
  EXPECT_FALSE(gated_.Barrier()->Done());
}

TEST_F(GatedCommunicatorTest, RecordsLaunches) {
  std::thread launcher([&] {
    gated_.AllReduce(span_);
    gated_.Broadcast(span_, 0);
  });
  EXPECT_TRUE(gated_.AwaitLaunches(2, kSoon));
  launcher.join();
  EXPECT_FALSE(gated_.AwaitLaunches(3, absl::ZeroDuration()));
  const auto launches = gated_.launches();
  EXPECT_EQ(launches[0].kind, "all-reduce");
  EXPECT_EQ(launches[0].count, 100);
  EXPECT_EQ(launches[1].kind, "broadcast");
}

TEST_F(GatedCommunicatorTest, FailsTheChosenOperation) {
  gated_.Fail(1, absl::UnavailableError("the line is dead"));
  gated_.Open();
  EXPECT_OK(gated_.AllReduce(span_)->Wait(kSoon));
  EXPECT_THAT(gated_.AllReduce(span_)->Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "the line is dead"));
  EXPECT_THAT(gated_.AllReduce(span_)->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the line")));
}

TEST_F(GatedCommunicatorTest, AbortEndsWhatIsHeld) {
  const WorkPtr work = gated_.AllReduce(span_);
  gated_.Abort("enough");
  EXPECT_THAT(work->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "enough"));
}

TEST_F(GatedCommunicatorTest, WhatIsSplitOffHasAGateThatStandsAsThisOne) {
  ASSERT_OK_AND_ASSIGN(const auto held, gated_.Split({0}));
  const WorkPtr work = held->AllReduce(span_);
  EXPECT_FALSE(work->Done());
  auto* gate = dynamic_cast<GatedCommunicator*>(held.get());
  ASSERT_NE(gate, nullptr);
  gate->Release(1);
  EXPECT_OK(work->Wait(kSoon));
  const WorkPtr barrier = held->Barrier();
  gated_.Abort("enough");
  EXPECT_THAT(barrier->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
}

}  // namespace
}  // namespace coxswain
