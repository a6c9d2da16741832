#include "server/telemetry/telemetry.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "proto/types.pb.h"
#include "server/telemetry/rpc_metrics.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

StepTiming TimingOf(int64_t step, float compute, float wait = 0,
                    float exchange = 0) {
  StepTiming timing;
  timing.step = step;
  timing.compute = compute;
  timing.wait = wait;
  timing.exchange = exchange;
  return timing;
}

schedule::Plan PlanOf(int64_t version, const std::string& hook) {
  schedule::Plan plan;
  plan.version = version;
  plan.hook = hook;
  return plan;
}

Progress MovedOf(int64_t payload, int64_t wire, int64_t gradient = 0) {
  Progress progress;
  progress.gradient_bytes = gradient;
  progress.payload_bytes = payload;
  progress.wire_bytes = wire;
  return progress;
}

absl::Status Aborted(const v1::ErrorDetail& detail) {
  return WithDetail(absl::AbortedError("over"), detail);
}

class TelemetryTest : public testing::Test {
 protected:
  void Begin(int64_t generation, int world_size,
             const std::string& job = "job") {
    GenerationBegin begin;
    begin.job = job;
    begin.generation = Generation(generation);
    begin.world_size = world_size;
    telemetry().OnGenerationBegan(begin);
  }
  void Note(int rank, const std::vector<StepTiming>& timings,
            const Progress& progress = {}, int64_t generation = 1) {
    telemetry().Note({"job", Generation(generation), rank, 1},
                     PlanOf(1, "fp16"), progress, timings);
  }
  // Made with the limits when it is first asked for.
  Telemetry& telemetry() {
    if (telemetry_ == nullptr) {
      telemetry_ = std::make_unique<Telemetry>(limits_, &clock_);
    }
    return *telemetry_;
  }

  FakeClock clock_;
  TelemetryLimits limits_;

 private:
  std::unique_ptr<Telemetry> telemetry_;
};

TEST_F(TelemetryTest, KeepsTheNewestStepsOfEachRank) {
  limits_.steps_per_rank = 3;
  Begin(1, 2);
  for (int64_t step = 0; step < 5; ++step) {
    Note(0, {TimingOf(step, 0.1F * static_cast<float>(step + 1))});
  }
  Note(1, {TimingOf(4, 2)});
  const auto timings = telemetry().Timings("job", {0, 1, 7}, 0);
  ASSERT_EQ(timings.size(), 3u);
  ASSERT_EQ(timings[0].size(), 3u);
  EXPECT_EQ(timings[0].front().step, 2);
  EXPECT_EQ(timings[0].back().step, 4);
  EXPECT_EQ(timings[1].size(), 1u);
  EXPECT_THAT(timings[2], IsEmpty()) << "there is no rank 7";
  EXPECT_EQ(telemetry().records(), 4);

  const StepMatrix matrix = telemetry().Matrix("job", 2);
  EXPECT_EQ(matrix.first_step, 3);
  EXPECT_EQ(matrix.ranks, 2u);
  EXPECT_THAT(matrix.compute, ElementsAre(0.4F, 0.5F, -1, 2));
}

TEST_F(TelemetryTest, ARankIsNotCountedTwiceNorInAnEarlierGeneration) {
  Begin(1, 1);
  Note(0, {TimingOf(3, 1), TimingOf(4, 1)});
  Note(0, {TimingOf(4, 9), TimingOf(5, 1)});
  EXPECT_EQ(telemetry().Totals("job")->steps, 3);
  EXPECT_EQ(telemetry().Totals("job")->duration.count(), 3u);
  Begin(2, 1);
  Note(0, {TimingOf(6, 1)});
  EXPECT_EQ(telemetry().Totals("job")->steps, 3);
  EXPECT_EQ(telemetry().Matrix("job", 8).steps, 0u);
  EXPECT_EQ(telemetry().records(), 0);
  // From a checkpoint: steps may go back with a new generation.
  Note(0, {TimingOf(2, 1)}, {}, 2);
  EXPECT_EQ(telemetry().Totals("job")->steps, 4);
}

TEST_F(TelemetryTest, WhatMakesNoSenseIsCountedAndDropped) {
  Begin(1, 1);
  Note(0, {TimingOf(1, -1), TimingOf(2, std::numeric_limits<float>::infinity()),
           TimingOf(3, 0, std::numeric_limits<float>::quiet_NaN()),
           TimingOf(-1, 0), TimingOf(std::numeric_limits<int64_t>::max(), 0),
           TimingOf(5, 0.5F, 0.25F, 0.25F)});
  StepTiming backwards = TimingOf(6, 0);
  backwards.wire_bytes = -1;
  Note(0, {backwards});
  Note(5, {TimingOf(7, 1)});  // no such rank
  const JobTelemetry totals = *telemetry().Totals("job");
  EXPECT_EQ(totals.refused, 6);
  EXPECT_EQ(totals.steps, 1);
  EXPECT_DOUBLE_EQ(totals.duration.sum(), 1);
  EXPECT_DOUBLE_EQ(totals.wait.sum(), 0.25);
}

TEST_F(TelemetryTest, OfALongHeartbeatTheNewestCount) {
  Begin(1, 1);
  std::vector<StepTiming> timings;
  for (int64_t step = 0; step < 100; ++step) {
    timings.push_back(TimingOf(step, 1));
  }
  Note(0, timings);
  EXPECT_EQ(telemetry().Timings("job", {0}, 0)[0].front().step, 36);
}

TEST_F(TelemetryTest, ManyRanksShareTheLimitOfAJob) {
  limits_.records_per_job = 8;
  Begin(1, 4);
  for (int rank = 0; rank < 4; ++rank) {
    for (int64_t step = 0; step < 6; ++step) Note(rank, {TimingOf(step, 1)});
  }
  EXPECT_EQ(telemetry().records(), 8);
  EXPECT_EQ(telemetry().Timings("job", {3}, 0)[0].size(), 2u);
}

TEST_F(TelemetryTest, AllJobsShareTheLimit) {
  limits_.records = 3;
  Begin(1, 2);
  Note(0, {TimingOf(0, 1), TimingOf(1, 1), TimingOf(2, 1), TimingOf(3, 1)});
  EXPECT_EQ(telemetry().records(), 3);
  const auto kept = telemetry().Timings("job", {0}, 0)[0];
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept.back().step, 3) << "its newest take its oldest's places";
  Note(1, {TimingOf(3, 1)});
  EXPECT_THAT(telemetry().Timings("job", {1}, 0)[0], IsEmpty());
  // Its place is free again once the generation is over.
  Begin(2, 2);
  Note(1, {TimingOf(4, 1)}, {}, 2);
  EXPECT_EQ(telemetry().records(), 1);
}

TEST_F(TelemetryTest, BytesCountUnderTheHookOfTheirTime) {
  limits_.hooks_per_job = 2;
  Begin(1, 2);
  const AttachedRank rank0 = {"job", Generation(1), 0, 1};
  const AttachedRank rank1 = {"job", Generation(1), 1, 2};
  telemetry().Note(rank0, PlanOf(1, "none"), MovedOf(100, 200), {});
  telemetry().Note(rank1, PlanOf(1, "none"), MovedOf(10, 20), {});
  telemetry().Note(rank0, PlanOf(2, "fp16"), MovedOf(150, 225, 100), {});
  telemetry().Note(rank0, PlanOf(3, "int8"), MovedOf(160, 227), {});
  telemetry().Note(rank0, PlanOf(3, "int8"), MovedOf(1, 1), {});  // backwards
  const JobTelemetry totals = *telemetry().Totals("job");
  EXPECT_EQ(totals.traffic.payload_bytes, 170);
  EXPECT_EQ(totals.traffic.wire_bytes, 247);
  ASSERT_EQ(totals.hooks.size(), 3u) << "the limit, and other";
  EXPECT_EQ(totals.traffic.gradient_bytes, 100);
  EXPECT_EQ(totals.hooks.at("none").payload_bytes, 110);
  EXPECT_EQ(totals.hooks.at("fp16").gradient_bytes, 100);
  EXPECT_EQ(totals.hooks.at("fp16").wire_bytes, 25);
  EXPECT_EQ(totals.hooks.at("other").payload_bytes, 10);
  const auto plans = telemetry().Plans("job");
  ASSERT_EQ(plans.size(), 3u);
  EXPECT_EQ(plans[0].plan.version, 3);
  EXPECT_EQ(plans[2].plan.hook, "none");
}

TEST_F(TelemetryTest, OfAResumedGenerationOnlyWhatComesCounts) {
  GenerationResumed resumed;
  resumed.begin.job = "job";
  resumed.begin.generation = Generation(1);
  resumed.begin.world_size = 1;
  ASSERT_OK(telemetry().OnResume({resumed}));
  Note(0, {}, MovedOf(1000, 1000));
  EXPECT_EQ(telemetry().Totals("job")->traffic.payload_bytes, 0);
  Note(0, {}, MovedOf(1010, 1005));
  EXPECT_EQ(telemetry().Totals("job")->traffic.payload_bytes, 10);
  EXPECT_EQ(telemetry().generations().begun, 0);
}

TEST_F(TelemetryTest, EndedJobsGoAfterAWhile) {
  Begin(1, 1);
  Note(0, {TimingOf(0, 1)});
  telemetry().OnGenerationEnded("job", Generation(1),
                                absl::AbortedError("all left"));
  telemetry().Tick(clock_.Now() + absl::Minutes(4));
  EXPECT_TRUE(telemetry().Totals("job").has_value());
  telemetry().Tick(clock_.Now() + absl::Minutes(6));
  EXPECT_FALSE(telemetry().Totals("job").has_value());
  EXPECT_THAT(telemetry().AllTotals(), IsEmpty());
  EXPECT_EQ(telemetry().records(), 0);
  // One whose next generation has begun stays.
  Begin(2, 1);
  telemetry().OnGenerationEnded("job", Generation(1),
                                absl::AbortedError("late"));
  telemetry().Tick(clock_.Now() + absl::Hours(1));
  EXPECT_TRUE(telemetry().Totals("job").has_value());
}

TEST_F(TelemetryTest, ThereAreNoMoreJobsThanTheLimit) {
  limits_.jobs = 1;
  Begin(1, 1);
  Begin(2, 1, "another");
  EXPECT_TRUE(telemetry().Totals("job").has_value());
  EXPECT_FALSE(telemetry().Totals("another").has_value());
}

TEST_F(TelemetryTest, ReportsWhyGenerationsEnded) {
  v1::ErrorDetail lost, schedule;
  lost.mutable_member_lost()->set_reason("gone");
  schedule.mutable_schedule_mismatch()->set_round(1);
  const auto end = [this](const absl::Status& why) {
    telemetry().OnGenerationEnded("job", Generation(1), why);
  };
  Begin(1, 1);
  end(Aborted(lost));
  end(Aborted(schedule));
  end(Aborted(schedule));
  end(absl::AbortedError("all have left"));
  end(absl::UnavailableError("the coordinator stops"));
  EXPECT_THAT(telemetry().generations().ended,
              UnorderedElementsAre(Pair("left", 1), Pair("member", 1),
                                   Pair("schedule", 2)));
  EXPECT_EQ(telemetry().generations().begun, 1);
}

StepMatrix MatrixOf(size_t ranks, size_t steps, std::vector<float> compute) {
  StepMatrix matrix;
  matrix.first_step = 10;
  matrix.ranks = ranks;
  matrix.steps = steps;
  matrix.duration = compute;
  matrix.compute = std::move(compute);
  return matrix;
}

TEST(StragglersTest, OfTwoRanksTheSlowerOneIsMarked) {
  const auto steps = SummariseSteps(MatrixOf(2, 2, {0.1F, 0.1F, 0.1F, 0.2F}));
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].step, 10);
  EXPECT_THAT(steps[0].stragglers, IsEmpty());
  EXPECT_THAT(steps[1].stragglers, ElementsAre(1));
  EXPECT_EQ(steps[1].slowest_rank, 1);
  EXPECT_FLOAT_EQ(static_cast<float>(steps[1].compute_median), 0.1F);
  EXPECT_THAT(PersistentStragglers(steps), ElementsAre(1));
  EXPECT_NEAR(StepsPerSecond(steps), 2 / 0.3, 1e-3);
}

TEST(StragglersTest, MillisecondsMakeNone) {
  const auto steps = SummariseSteps(MatrixOf(2, 1, {0.001F, 0.005F}));
  EXPECT_THAT(steps[0].stragglers, IsEmpty());
}

TEST(StragglersTest, StepsThatNoRankReportedAreLeftOut) {
  const auto steps = SummariseSteps(MatrixOf(2, 3, {1, -1, -1, 1, -1, 1}));
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[1].step, 12);
  EXPECT_EQ(steps[1].reported, 1);
  EXPECT_THAT(steps[1].stragglers, IsEmpty());
  EXPECT_THAT(SummariseSteps({}), IsEmpty());
  EXPECT_EQ(StepsPerSecond({}), 0);
}

TEST(RpcMetricsTest, CountsByMethodAndCodeWithinABound) {
  RpcMetrics metrics;
  metrics.NoteCall("/coxswain.v1.Store/Get", "OK", absl::Seconds(2), false);
  metrics.NoteCall("/coxswain.v1.Store/Get", "ABORTED", absl::Seconds(2),
                   false);
  metrics.NoteCall("/coxswain.v1.Rendezvous/Attach", "OK", absl::Hours(1),
                   true);
  metrics.NoteMessage("ticket");
  const RpcMetrics::Snapshot read = metrics.Read();
  EXPECT_EQ(read.methods.at("Store/Get").duration.count(), 2u);
  EXPECT_EQ(read.methods.at("Store/Get").codes.at("OK"), 1);
  EXPECT_EQ(read.methods.at("Rendezvous/Attach").duration.count(), 0u);
  EXPECT_EQ(read.messages.at("ticket"), 1);
  for (int i = 0; i < 1000; ++i) {
    metrics.NoteCall(absl::StrCat("/s/", i), "OK", {}, false);
  }
  EXPECT_EQ(metrics.Read().methods.size(), RpcMetrics::kMaxMethods + 1);
}

TEST(HistogramTest, CountsUpToEachBound) {
  Histogram histogram;
  histogram.Observe(0.001);  // on the bound: within it
  histogram.Observe(0.02);
  histogram.Observe(1e6);
  EXPECT_EQ(histogram.Cumulative(0), 1u);
  EXPECT_EQ(histogram.Cumulative(Histogram::kBounds.size() - 1), 2u);
  EXPECT_EQ(histogram.count(), 3u);
  EXPECT_DOUBLE_EQ(histogram.sum(), 1e6 + 0.021);
}

TEST_F(TelemetryTest, ARingIsKeptWithTheGenerationSinceWhichItHasItsOrder) {
  const auto note = [&](int64_t generation, int rank, const char* ring) {
    telemetry().NoteRing({"job", Generation(generation), rank, 1}, ring);
  };
  Begin(3, 4);
  EXPECT_FALSE(telemetry().RingOf("job").has_value());
  note(3, 0, "communicator 'job/3/world': 0 1 2 3; by rank: not measured");
  // A group of others has a ring too, and a late message changes nothing.
  note(3, 2, "communicator 'job/3/pair': 1 0; by rank: not measured");
  note(2, 0, "communicator 'job/2/world': 3 2 1 0; by rank: not measured");
  note(3, 0, "nothing of it");
  EXPECT_EQ(telemetry().RingOf("job")->order, "0 1 2 3");
  EXPECT_EQ(telemetry().RingOf("job")->reason, "by rank: not measured");
  Begin(4, 4);
  EXPECT_FALSE(telemetry().RingOf("job").has_value());
  note(4, 0, "communicator 'job/4/world': 0 1 2 3; by rank: 9 MB/s");
  EXPECT_EQ(telemetry().RingOf("job")->reason, "by rank: 9 MB/s");
  EXPECT_EQ(telemetry().RingOf("job")->since, Generation(3));
  Begin(5, 4);
  note(5, 0, "communicator 'job/5/world': 0 2 1 3; by measured links");
  EXPECT_EQ(telemetry().RingOf("job")->since, Generation(5));
}

}  // namespace
}  // namespace coxswain::server
