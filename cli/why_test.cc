#include "cli/commands.h"

#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/schedule.pb.h"

namespace coxswain::why_test {
namespace {

using testing::HasSubstr;
using testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

std::string TextOf(const absl::StatusOr<std::string>& text) {
  return text.ok() ? *text : text.status().ToString();
}

v1::WhyResponse Example() {
  v1::WhyResponse why;
  why.set_state("running");
  why.set_generation(2);
  why.set_last_event("rank 1 on host b was lost");
  why.add_findings("rank 1 is missing in round 8 of stream train");
  for (int rank = 0; rank < 2; ++rank) {
    v1::RankProgress* progress = why.add_ranks();
    progress->set_rank(rank);
    progress->set_member(rank == 0 ? "a/0 on a" : "b/0 on b");
    progress->set_state("attached");
    progress->set_odd(rank == 1);
    progress->set_idle_ms(1500);
    if (rank == 1) continue;
    progress->set_stream("train");
    progress->set_round(8);
    progress->set_step(8);
    progress->set_micro_batches_in_window(2);
    progress->set_window(4);
    progress->set_ticket_age_ms(12000);
    progress->set_collective_sequence(99);
    progress->set_activity("waits for the decision");
  }
  v1::RoundRecord* round = why.add_history();
  round->set_stream("train");
  round->set_round(7);
  round->set_step(7);
  round->set_reason("rank 0: a gradient is not finite");
  round->set_plan_version(3);
  return why;
}

TEST(WhyTest, OutliersAreMarked) {
  EXPECT_EQ(
      FormatWhy("x", Example(), kNow),
      "job x: running, generation 2\n"
      "  last end: rank 1 on host b was lost\n"
      "- rank 1 is missing in round 8 of stream train\n"
      "     RANK  MEMBER    STATE     STREAM  ROUND  STEP  WINDOW  TICKET  "
      "DECIDED  BATCHES  SEQUENCE  BUCKET  IDLE  SILENT  ACTIVITY\n"
      "     0     a/0 on a  attached  train   8      8     2/4     12s     "
      "no       0        99        0       1.5s  0       waits for the "
      "decision\n"
      "  !  1     b/0 on b  attached  -       -      -     -       -       "
      "-        0        0         0       1.5s  0       -\n"
      "! differs from the other ranks, or is behind\n"
      "the last rounds:\n"
      "  STREAM  ROUND  STEP  PLAN  DECISION  AGO  TICKETS TOOK  LAST RANK  "
      "WHY\n"
      "  train   7      7     3     skip      0    0             0          "
      "rank 0: a gradient is not finite\n");
}

TEST(WhyTest, PlacesInAPipelineAreThereWhereItHasOne) {
  v1::WhyResponse why = Example();
  v1::RankProgress* const rank = why.mutable_ranks(0);
  rank->set_pipeline("0RECV_B2");
  rank->set_pipeline_step(7);
  rank->set_pipeline_ms(34000);
  rank->add_waits_for(1);
  rank->add_waits_for(3);
  const std::string text = FormatWhy("x", why, kNow);
  EXPECT_THAT(text,
              HasSubstr("ACTIVITY                PIPELINE  FOR  WAITS FOR\n"));
  EXPECT_THAT(text, HasSubstr("waits for the decision  0RECV_B2  34s  1 3\n"));
  EXPECT_THAT(text, HasSubstr("-                       -         -    -\n"));
  const auto json = nlohmann::json::parse(FormatWhyJson("x", why, kNow));
  EXPECT_EQ(json["ranks"][0]["pipeline"]["action"], "0RECV_B2");
  EXPECT_EQ(json["ranks"][0]["pipeline"]["seconds"], 34.0);
  EXPECT_EQ(json["ranks"][0]["pipeline"]["waits_for"], nlohmann::json({1, 3}));
  EXPECT_FALSE(json["ranks"][1].contains("pipeline"));
}

TEST(WhyTest, ReportsThatNoProblemWasFoundOnlyWhereNothingHasFailed) {
  v1::WhyResponse why;
  why.set_state("running");
  EXPECT_THAT(FormatWhy("x", why, kNow), HasSubstr("- no problem found\n"));
  why.set_state("forming");
  EXPECT_THAT(FormatWhy("x", why, kNow),
              HasSubstr("- no generation of it has begun yet\n"));
  // As a coordinator of before reported a job that had ended before it began.
  for (const char* const end : {"rank 1 was lost: no sign of life for 10s",
                                "rank 1 (b/0) failed: out of memory"}) {
    why.set_state("ended");
    why.set_last_event(end);
    EXPECT_THAT(FormatWhy("x", why, kNow), Not(HasSubstr("no problem")));
    EXPECT_THAT(FormatWhy("x", why, kNow), HasSubstr("no more than that is"));
  }
  why.set_last_event("all 2 members of job 'x' have left cleanly");
  EXPECT_THAT(FormatWhy("x", why, kNow), HasSubstr("- no failure:"));
}

TEST(WhyTest, TheEndIsShownOnceWithItsTimeAndWhatToDo) {
  v1::WhyResponse why = Example();
  why.clear_ranks();
  why.clear_history();
  why.clear_findings();
  why.set_state("ended");
  why.set_last_event(
      "rank 1 (b/0) was lost: exited with code 3 (reported by "
      "its launcher)");
  why.set_last_event_ms(5000);
  why.add_findings(why.last_event());
  EXPECT_EQ(FormatWhy("x", why, kNow),
            "job x: ended, generation 2\n"
            "  last end, 5s ago (2023-11-14 22:13:15 UTC): rank 1 (b/0) was "
            "lost: exited with code 3 (reported by its launcher)\n"
            "next: read the end of that worker's output, which its launcher "
            "printed\n");
  const auto json = nlohmann::json::parse(FormatWhyJson("x", why, kNow));
  EXPECT_EQ(json["last_event_at"], 1699999995);
}

// The last end of a job that runs is over.
TEST(WhyTest, WhatToDoIsAboutWhatIsWrongNow) {
  v1::WhyResponse why = Example();
  why.set_last_event("rank 1 was lost: killed by signal 9 (reported)");
  why.set_findings(0, "step 8: rank 1 has not announced it");
  EXPECT_THAT(FormatWhy("x", why, kNow), HasSubstr("\nnext: look where the"));
  why.set_findings(0, "the job makes progress; no rank waits");
  EXPECT_THAT(FormatWhy("x", why, kNow), Not(HasSubstr("next:")));
}

TEST(WhyTest, WhatIsNotKnownAfterARestartIsADash) {
  v1::WhyResponse why;
  why.set_state("ended");
  why.set_generation(2);
  why.set_last_event("rank 0 failed: x");
  why.add_findings(why.last_event());
  why.add_findings("the coordinator was restarted since then");
  v1::RankProgress* const rank = why.add_ranks();
  rank->set_member("a/0 on a");
  rank->set_state("lost");
  rank->set_restored(true);
  rank->set_step(20);
  rank->set_idle_ms(1000);
  rank->set_departure("x");
  EXPECT_THAT(FormatWhy("x", why, kNow),
              HasSubstr("- the coordinator was restarted since then\n"));
  EXPECT_THAT(FormatWhy("x", why, kNow),
              HasSubstr("a/0 on a  lost   -       -      20    -       -       "
                        "-        -        -         -       -     -       -   "
                        "      x\n"));
  const auto json = nlohmann::json::parse(FormatWhyJson("x", why, kNow));
  EXPECT_TRUE(json["ended_at"].is_null());
  EXPECT_TRUE(json["ranks"][0]["heard_at"].is_null());
  EXPECT_EQ(json["ranks"][0]["restored"], true);
  EXPECT_EQ(json["ranks"][0]["departure"], "x");
}

TEST(WhyTest, JsonHasTheSame) {
  v1::WhyResponse why = Example();
  why.mutable_history(0)->set_age_ms(500);
  why.mutable_history(0)->set_tickets_ms(250);
  why.mutable_ranks(0)->set_silent_ms(250);
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  auto json = nlohmann::json::parse(FormatWhyJson("x", why, now));
  EXPECT_EQ(json["job"], "x");
  EXPECT_EQ(json["now"], 1700000000);
  EXPECT_TRUE(json["ended_at"].is_null());
  EXPECT_EQ(json["findings"].size(), 1u);
  EXPECT_EQ(json["odd_ranks"], nlohmann::json({1}));
  EXPECT_EQ(json["ranks"][1]["odd"], true);
  EXPECT_EQ(json["ranks"][0]["ticket_at"], 1699999988);
  EXPECT_EQ(json["ranks"][0]["progressed_at"], 1699999998.5);
  EXPECT_EQ(json["ranks"][0]["heard_at"], 1699999999.75);
  EXPECT_TRUE(json["ranks"][1]["ticket_at"].is_null());
  EXPECT_EQ(json["history"][0]["commit"], false);
  EXPECT_EQ(json["history"][0]["decided_at"], 1699999999.5);
  EXPECT_EQ(json["history"][0]["tickets_seconds"], 0.25);

  // Ages are those at the end.
  why.set_state("ended");
  why.set_ended_ms(10'000);
  json = nlohmann::json::parse(FormatWhyJson("x", why, now));
  EXPECT_EQ(json["ended_at"], 1699999990);
  EXPECT_EQ(json["history"][0]["decided_at"], 1699999989.5);
  EXPECT_EQ(json["ranks"][0]["ticket_at"], 1699999978);
}

TEST(WhyTest, AnEarlierVersionsNamesAreThereToo) {
  const auto json = nlohmann::json::parse(FormatWhyJson("x", Example(), {}));
  EXPECT_EQ(json["ranks"][0]["ticket_age_ms"], 12000);
  EXPECT_EQ(json["ranks"][0]["idle_ms"], 1500);
  EXPECT_EQ(json["ranks"][0]["silent_ms"], 0);
  EXPECT_EQ(json["history"][0]["age_ms"], 0);
  EXPECT_EQ(json["history"][0]["tickets_ms"], 0);
}

TEST(WhyTest, AsksForTheJob) {
  FakeCoordinatorStub stub;
  stub.Answer<v1::WhyRequest, v1::WhyResponse>(
      "Schedule/Why", [](const v1::WhyRequest& request, const CallOptions&) {
        return request.job() == "x" ? absl::StatusOr<v1::WhyResponse>(Example())
                                    : absl::NotFoundError("no such job");
      });
  JobOptions options;
  options.job = "x";
  EXPECT_THAT(TextOf(ShowWhy(options, stub)), HasSubstr("generation 2"));
  options.job = "y";
  EXPECT_THAT(ShowWhy(options, stub),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no such job")));
}

}  // namespace
}  // namespace coxswain::why_test
