#include "cli/step_bars.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::HasSubstr;
using testing::Not;

void AddRank(int rank, double compute, double wait, double exchange,
             v1::JobDescription* job) {
  v1::MemberDescription* const member = job->add_members();
  member->mutable_member()->set_rank(rank);
  // Two steps, whose mean counts.
  for (const double part : {0.5, 1.5}) {
    v1::StepTiming* const step = member->add_steps();
    step->set_compute(part * compute);
    step->set_wait(part * wait);
    step->set_exchange(part * exchange);
  }
}

TEST(StepBarsTest, WithoutTimingsThereAreNone) {
  v1::JobDescription job;
  job.add_members();
  EXPECT_EQ(StepBars(job), "");
}

TEST(StepBarsTest, PartsAreToTheScaleOfTheSlowestRank) {
  v1::JobDescription job;
  AddRank(0, 0.1, 0.05, 0.05, &job);
  AddRank(1, 0.2, 0.1, 0.1, &job);
  job.add_stragglers(1);
  EXPECT_EQ(StepBars(job),
            "  mean of the last steps: # computes, . waits, = exchanges\n"
            "  rank 0     ##########.....=====                         200.0 "
            "ms\n"
            "  rank 1     ####################..........==========     400.0 "
            "ms  straggler\n");
}

TEST(StepBarsTest, StragglersHaveRoomBeforeOthers) {
  v1::JobDescription job;
  for (int rank = 0; rank < 20; ++rank) AddRank(rank, 0.1, 0, 0, &job);
  job.add_stragglers(19);
  const std::string bars = StepBars(job);
  EXPECT_THAT(bars, HasSubstr("  rank 19 "));
  EXPECT_THAT(bars, HasSubstr("  rank 14 "));
  EXPECT_THAT(bars, Not(HasSubstr("  rank 15 ")));
  EXPECT_THAT(bars, HasSubstr("  (4 more ranks)\n"));
}

TEST(StepBarsTest, HooksSayWhatTheySaved) {
  v1::JobDescription job;
  AddRank(0, 0, 0, 0, &job);
  v1::HookTraffic* hook = job.add_hooks();
  hook->set_hook("fp16");
  hook->set_gradient_bytes(2'000'000);
  hook->set_payload_bytes(1'000'000);
  hook = job.add_hooks();
  hook->set_hook("allreduce");
  hook->set_gradient_bytes(1000);
  hook->set_payload_bytes(1500);
  EXPECT_THAT(
      StepBars(job),
      HasSubstr("  fp16: 2.0 MB of gradients, 1.0 MB exchanged, 1.0 MB saved "
                "(2.00x)\n  allreduce: 1.0 kB of gradients, 1.5 kB "
                "exchanged\n"));
}

}  // namespace
}  // namespace coxswain
