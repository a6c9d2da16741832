#include <vector>

#include "base/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/plan.h"
#include "server/rpc/rendezvous_service.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class DescribeStepsTest : public testing::Test {
 protected:
  DescribeStepsTest() : telemetry_(TelemetryLimits(), &clock_) {}

  void Begin(int world_size) {
    GenerationBegin begin;
    begin.job = "job";
    begin.generation = Generation(1);
    begin.world_size = world_size;
    telemetry_.OnGenerationBegan(begin);
    job_.set_job("job");
    for (int rank = 0; rank < world_size; ++rank) {
      job_.add_members()->mutable_member()->set_rank(rank);
    }
  }
  // Steps 0 to steps - 1.
  void Note(int rank, int steps, float compute) {
    std::vector<StepTiming> timings;
    for (int step = 0; step < steps; ++step) {
      StepTiming timing;
      timing.step = step;
      timing.compute = compute;
      timing.exchange = 0.5;
      timings.push_back(timing);
    }
    schedule::Plan plan;
    plan.version = 1;
    plan.hook = "fp16";
    Progress progress;
    progress.gradient_bytes = 400;
    progress.payload_bytes = 200;
    progress.wire_bytes = 300;
    telemetry_.Note({"job", Generation(1), rank, 1}, plan, progress, timings);
  }

  FakeClock clock_;
  Telemetry telemetry_;
  v1::JobDescription job_;
};

TEST_F(DescribeStepsTest, OfAnUnknownJobNothingIsReported) {
  job_.set_job("another");
  job_.add_members();
  AddSteps(telemetry_, 8, &job_);
  EXPECT_THAT(job_.members(0).steps(), IsEmpty());
  EXPECT_THAT(job_.hooks(), IsEmpty());
}

TEST_F(DescribeStepsTest, TheLastStepsStragglersAndHooksAreReported) {
  Begin(3);
  Note(0, 20, 1);
  Note(1, 20, 1);
  Note(2, 20, 2);
  AddSteps(telemetry_, 4, &job_);
  for (const v1::MemberDescription& member : job_.members()) {
    ASSERT_THAT(member.steps(), SizeIs(4));
    EXPECT_EQ(member.steps(0).step(), 16) << "the oldest first";
    EXPECT_EQ(member.steps(3).exchange(), 0.5);
  }
  EXPECT_EQ(job_.members(2).steps(0).compute(), 2);
  EXPECT_THAT(job_.stragglers(), ElementsAre(2));
  ASSERT_THAT(job_.hooks(), SizeIs(1));
  EXPECT_EQ(job_.hooks(0).hook(), "fp16");
  EXPECT_EQ(job_.hooks(0).gradient_bytes(), 1200);
  EXPECT_EQ(job_.hooks(0).payload_bytes(), 600);
  EXPECT_EQ(job_.hooks(0).wire_bytes(), 900);
}

TEST_F(DescribeStepsTest, WhatIsAskedForAndLargeJobsHaveLimits) {
  Begin(2);
  Note(0, 64, 1);
  Note(0, 64, 1);
  AddSteps(telemetry_, 1 << 30, &job_);
  EXPECT_THAT(job_.members(0).steps(), SizeIs(kMaxDescribedSteps));
}

TEST_F(DescribeStepsTest, OfALargeJobFewerStepsAreReported) {
  constexpr int kRanks = 8192;
  Begin(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) Note(rank, 4, 1);
  AddSteps(telemetry_, 4, &job_);
  EXPECT_THAT(job_.members(kRanks - 1).steps(), SizeIs(2));
  EXPECT_LT(job_.ByteSizeLong(), size_t{2} << 20);
}

}  // namespace
}  // namespace coxswain::server
