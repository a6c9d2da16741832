#include "cli/watch.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

v1::DescribeResponse At(int64_t step, int64_t generation = 1) {
  v1::DescribeResponse response;
  response.set_cluster_id("c1");
  v1::JobDescription* const job = response.add_jobs();
  job->set_job("mnist");
  job->set_state("running");
  job->set_generation(generation);
  job->set_world_size(2);
  (*job->mutable_plan()->mutable_terms())["max_steps"] = "1000";
  for (const int64_t done : {step, step - 1}) {
    v1::MemberDescription* const member = job->add_members();
    member->set_state("attached");
    member->set_step(done);
    member->mutable_member()->set_host("host\x1b[2J");
  }
  return response;
}

TEST(WatchTest, RatesAreThoseOfTheLastSecondsOfAGeneration) {
  FakeClock clock;
  StepRates rates;
  rates.Note(At(100), clock.Now());
  EXPECT_LT(rates.Of(At(100).jobs(0)), 0) << "one look is no rate";
  for (int i = 1; i <= 30; ++i) {
    clock.Advance(absl::Seconds(1));
    rates.Note(At(100 + (i <= 15 ? i : 15 + (i - 15) * 20)), clock.Now());
  }
  EXPECT_DOUBLE_EQ(rates.Of(At(0).jobs(0)), 20);
  clock.Advance(absl::Seconds(1));
  rates.Note(At(5, 2), clock.Now());
  EXPECT_LT(rates.Of(At(5, 2).jobs(0)), 0) << "a new generation begins anew";
}

TEST(WatchTest, ThePageHasProgressRateAndTable) {
  FakeClock clock;
  StepRates rates;
  rates.Note(At(400), clock.Now());
  clock.Advance(absl::Seconds(2));
  rates.Note(At(500), clock.Now());
  const std::string page = WatchPage(At(500), rates, clock.WallTime());
  EXPECT_THAT(page, StartsWith("mnist: step 500 of 1000 "
                               "[###############...............], "
                               "50.0 steps/s, 10s left\n\ncoordinator c1"));
  EXPECT_THAT(page, HasSubstr("RANK  WORKER"));
  EXPECT_THAT(WatchLines(At(500), rates, clock.WallTime()),
              HasSubstr(" job mnist: running, generation 1, 2 members, step "
                        "500 of 1000 ["));
}

TEST(WatchTest, AFrameFitsItsTerminalAndIsHarmless) {
  const std::string frame =
      WatchFrame("one\ntwo \x1b[2J is long\nthree\nfour\n", {4, 14});
  EXPECT_EQ(frame,
            "\x1b[Hone\x1b[K\r\ntwo ?[2J is...\x1b[K\r\n(2 more lines)\x1b[K"
            "\r\n\x1b[J");
}

class WatchStatusTest : public testing::Test {
 protected:
  absl::Status Watch(bool terminal, int looks) {
    WatchWorld world;
    world.describe = [this, looks]() -> absl::StatusOr<v1::DescribeResponse> {
      if (++asked_ == looks) stop_.Raise(absl::CancelledError("signal 15"));
      if (asked_ == fails_at_) return absl::UnavailableError("no\x1b[2J one");
      clock_.Advance(absl::Seconds(1));
      return At(100 * asked_);
    };
    world.stop = &stop_;
    world.write = [this](const std::string& text) {
      shown_ += text;
      return true;
    };
    world.terminal = terminal;
    world.size = [] { return TerminalSize{24, 100}; };
    world.clock = &clock_;
    world.interval = absl::ZeroDuration();
    return WatchStatus(world);
  }

  FakeClock clock_;
  CancelSignal stop_;
  std::string shown_;
  int asked_ = 0;
  int fails_at_ = 0;
};

TEST_F(WatchStatusTest, TheTerminalIsLeftAsItWasFound) {
  EXPECT_OK(Watch(/*terminal=*/true, 3));
  EXPECT_THAT(shown_, StartsWith("\x1b[?1049h\x1b[?25l\x1b[H"));
  EXPECT_THAT(shown_, HasSubstr("step 200 of 1000"));
  EXPECT_THAT(shown_, EndsWith("\x1b[?25h\x1b[?1049l"));
}

TEST_F(WatchStatusTest, ElsewhereThereAreLinesAndNothingElse) {
  EXPECT_OK(Watch(/*terminal=*/false, 4));
  EXPECT_THAT(shown_, HasSubstr("step 300 of 1000"));
  EXPECT_THAT(shown_, Not(HasSubstr("\x1b")));
  EXPECT_EQ(std::count(shown_.begin(), shown_.end(), '\n'), 3);
}

TEST_F(WatchStatusTest, ALateErrorIsShownAndItAsksAgain) {
  fails_at_ = 2;
  EXPECT_OK(Watch(/*terminal=*/false, 4));
  EXPECT_THAT(shown_, HasSubstr("no answer, retrying: no?[2J one\n"));
  EXPECT_THAT(shown_, HasSubstr("step 300 of 1000"));
}

TEST_F(WatchStatusTest, AnErrorAtFirstEndsItBeforeAnythingIsDrawn) {
  fails_at_ = 1;
  EXPECT_THAT(Watch(/*terminal=*/true, 9),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
  EXPECT_EQ(shown_, "");
}

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

TEST(StepBarsTest, StragglersAreShownBeforeOthers) {
  v1::JobDescription job;
  for (int rank = 0; rank < 20; ++rank) AddRank(rank, 0.1, 0, 0, &job);
  job.add_stragglers(19);
  const std::string bars = StepBars(job);
  EXPECT_THAT(bars, HasSubstr("  rank 19 "));
  EXPECT_THAT(bars, HasSubstr("  rank 14 "));
  EXPECT_THAT(bars, Not(HasSubstr("  rank 15 ")));
  EXPECT_THAT(bars, HasSubstr("  (4 more ranks)\n"));
}

TEST(StepBarsTest, HooksShowWhatTheySaved) {
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
