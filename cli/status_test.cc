#include "cli/status.h"

#include "client/rpc/fake_coordinator_stub.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

v1::DescribeResponse Example() {
  v1::DescribeResponse response;
  response.set_cluster_id("c1");
  response.set_term(3);
  v1::JobDescription* job = response.add_jobs();
  job->set_job("train");
  job->set_state("running");
  job->set_generation(2);
  job->set_world_size(2);
  job->set_last_event("rank 1 on host b was lost");
  job->mutable_plan()->set_hook("powersgd(rank=2)");
  job->mutable_plan()->set_accumulation_steps(4);
  (*job->mutable_plan()->mutable_terms())["tail"] = "drop";
  (*job->mutable_plan()->mutable_terms())["on_stall"] = "abort";  // the default
  v1::MemberDescription* member = job->add_members();
  member->set_state("attached");
  member->set_step(1234);
  member->set_silent_ms(1500);
  member->mutable_member()->set_rank(1);
  member->mutable_member()->set_host("host-b");
  member->mutable_member()->set_address("10.0.0.2");
  member->mutable_member()->set_incarnation(18446744073709551615u);
  member->mutable_member()->mutable_identity()->set_node("b");
  member->mutable_member()->mutable_identity()->set_slot(7);
  return response;
}

// Example() with a handle of its job, which tests change.
struct ExampleOfAJob {
  v1::DescribeResponse response = Example();
  v1::JobDescription* job = response.mutable_jobs(0);
};

TEST(StatusTest, TheTableShowsEachWorkersRankAndHost) {
  EXPECT_EQ(FormatTable(Example(), kNow),
            "coordinator c1, term 3, 1 job\n"
            "job train: running, generation 2, world size 2, hook "
            "powersgd(rank=2), accumulation 4, tail=drop\n"
            "  last end: rank 1 on host b was lost\n"
            "  RANK  WORKER  HOST    STATE     STEP  SILENT  ADDRESS\n"
            "  1     b/7     host-b  attached  1234  1.5s    10.0.0.2\n");
}

TEST(StatusTest, APipelineIsShownWithItsMesh) {
  auto [response, job] = ExampleOfAJob();
  job->set_mesh("pp=2,dp=*");
  (*job->mutable_plan()->mutable_terms())["pipeline"] = "1f1b";
  EXPECT_THAT(FormatTable(response, kNow),
              HasSubstr("world size 2, mesh pp=2,dp=*, hook powersgd(rank=2), "
                        "accumulation 4, pipeline=1f1b, tail=drop\n"));
}

TEST(StatusTest, TheTableShowsTheRingAndWhy) {
  v1::DescribeResponse response = Example();
  v1::RingOrder* const ring = response.mutable_jobs(0)->mutable_ring();
  ring->set_order("0 2 1");
  ring->set_reason("by measured links: the slowest link has 9 MB/s");
  ring->set_since_generation(2);
  EXPECT_THAT(
      FormatTable(response, kNow),
      HasSubstr("\n  ring: 0 2 1, since generation 2; by measured links: "
                "the slowest link has 9 MB/s\n"));
}

TEST(StatusTest, AMeshIsShownWithEachRanksCoordinates) {
  auto [response, job] = ExampleOfAJob();
  job->set_mesh("dp=1,shard=2");
  job->set_placement("shard=2 spans hosts");
  job->mutable_members(0)->mutable_member()->set_coordinates("dp 0, shard 1");
  job->mutable_wait()->add_ranks(1);
  job->mutable_wait()->set_finding("it has not come");
  const std::string table = FormatTable(response, kNow);
  EXPECT_THAT(table, HasSubstr("world size 2, mesh dp=1,shard=2, hook "));
  EXPECT_THAT(table, HasSubstr("\n  placement: shard=2 spans hosts\n"));
  EXPECT_THAT(table, HasSubstr("wait for rank 1 (dp 0, shard 1; b/7 on "
                               "host-b) since"));
  EXPECT_THAT(
      table,
      HasSubstr("  RANK  MESH           WORKER  HOST    STATE     STEP  SILENT "
                " ADDRESS\n"
                "  1     dp 0, shard 1  b/7     host-b  attached  1234  1.5s   "
                " 10.0.0.2\n"));
}

TEST(StatusTest, NoTextOfAWorkerControlsTheTerminal) {
  auto [response, job] = ExampleOfAJob();
  job->set_last_event("gone\x1b[2J\njob evil: running");
  job->mutable_plan()->set_hook("h\x1b]0;title\x07");
  job->mutable_members(0)->mutable_member()->set_host(
      "a\xc2\x9b"
      "2J");
  const std::string table = FormatTable(response, kNow);
  EXPECT_THAT(table, HasSubstr("last end: gone?[2J?job evil: running\n"));
  EXPECT_THAT(table, HasSubstr("hook h?]0;title?, "));
  EXPECT_THAT(table, HasSubstr("a?2J "));
}

TEST(StatusTest, AnElasticJobShowsItsBoundsItsSparesAndItsAttempt) {
  auto [response, job] = ExampleOfAJob();
  job->set_min_world_size(1);
  job->set_attempt(4);
  v1::MemberDescription* spare = job->add_spares();
  *spare = job->members(0);
  spare->set_state("spare");
  spare->set_step(0);
  spare->mutable_member()->set_rank(-1);
  spare->mutable_member()->mutable_identity()->set_slot(8);
  EXPECT_EQ(FormatTable(response, kNow),
            "coordinator c1, term 3, 1 job\n"
            "job train: running, generation 2, world size 1 (1..2), attempt 4, "
            "hook powersgd(rank=2), accumulation 4, tail=drop\n"
            "  last end: rank 1 on host b was lost\n"
            "  RANK  WORKER  HOST    STATE     STEP  SILENT  ADDRESS\n"
            "  1     b/7     host-b  attached  1234  1.5s    10.0.0.2\n"
            "  -     b/8     host-b  spare     0     1.5s    10.0.0.2\n");
  const auto json = nlohmann::json::parse(FormatJson(response, kNow));
  EXPECT_EQ(json["jobs"][0]["world_size"], 2);
  EXPECT_EQ(json["jobs"][0]["min_world_size"], 1);
  EXPECT_EQ(json["jobs"][0]["attempt"], 4);
  EXPECT_EQ(json["jobs"][0]["spares"][0]["slot"], 8);
  EXPECT_TRUE(json["jobs"][0]["spares"][0]["heard_at"].is_null());
}

TEST(StatusTest, NoJobsIsNotAnEmptyAnswer) {
  v1::DescribeResponse none;
  none.set_cluster_id("c1");
  EXPECT_THAT(FormatTable(none, kNow), HasSubstr("0 jobs"));
}

// 2023-11-14 22:13:20 UTC is kNow.
TEST(StatusTest, WhenTheLastGenerationEndedIsShown) {
  v1::DescribeResponse response = Example();
  response.mutable_jobs(0)->set_last_event_ms(133'245);
  EXPECT_THAT(FormatTable(response, kNow),
              HasSubstr("  last end, 2m13s ago (2023-11-14 22:11:06 UTC): rank "
                        "1 on host b was lost\n"));
  const auto json = nlohmann::json::parse(FormatJson(response, kNow));
  EXPECT_EQ(json["jobs"][0]["last_event_at"], 1699999866.755);
}

TEST(StatusTest, WhileRanksWaitTheLineNamesForWhomSinceWhenAndWhatToCall) {
  v1::DescribeResponse response = Example();
  v1::RankWait* const wait = response.mutable_jobs(0)->mutable_wait();
  wait->add_ranks(1);
  wait->set_waited_ms(12'000);
  wait->set_finding("step 8 of stream \"train\": rank 1 has not announced it");
  EXPECT_THAT(
      FormatTable(response, kNow, "10.0.0.1:7077"),
      HasSubstr("\n  the others wait for rank 1 (b/7 on host-b) since "
                "2023-11-14 22:13:08 UTC: step 8 of stream \"train\": rank 1 "
                "has not announced it\n"
                "  look further: coxswain why train --coordinator "
                "10.0.0.1:7077\n"));
  auto json = nlohmann::json::parse(FormatJson(response, kNow));
  EXPECT_EQ(json["jobs"][0]["wait"], nlohmann::json::parse(R"({
    "ranks": [1], "since_at": 1699999988,
    "finding": "step 8 of stream \"train\": rank 1 has not announced it"})"));

  for (int rank = 2; rank < 12; ++rank) wait->add_ranks(rank);
  EXPECT_THAT(FormatTable(response, kNow),
              HasSubstr("wait for ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more "));
  wait->clear_ranks();
  EXPECT_THAT(FormatTable(response, kNow), HasSubstr("  stalled since 2023-"));
  // All of them are at one point.
  wait->add_ranks(0);
  wait->add_ranks(1);
  EXPECT_THAT(FormatTable(response, kNow), HasSubstr("  stalled since 2023-"));
  response.mutable_jobs(0)->clear_wait();
  EXPECT_THAT(FormatTable(response, kNow), Not(HasSubstr("look further")));
  json = nlohmann::json::parse(FormatJson(response, kNow));
  EXPECT_TRUE(json["jobs"][0]["wait"].is_null());
}

TEST(StatusTest, AFailureIsFollowedByWhatToDo) {
  auto [response, job] = ExampleOfAJob();
  job->set_state("ended");
  job->set_last_event(
      "rank 1 (b/7) was lost: killed by signal 9 (reported by "
      "its launcher)");
  v1::MemberDescription* const member = job->mutable_members(0);
  member->set_state("lost");
  member->set_departure("killed by signal 9 (reported by its launcher)");
  const std::string table = FormatTable(response, kNow);
  EXPECT_THAT(table, HasSubstr("\n  next: most often the kernel has killed it "
                               "for want of memory: on its host, `dmesg -T"));
  EXPECT_THAT(table, HasSubstr("\n  look further: coxswain why train\n"));
  EXPECT_THAT(table, HasSubstr("  HOW IT ENDED\n"));
  EXPECT_THAT(table, HasSubstr("  killed by signal 9 (reported by its "
                               "launcher)\n"));
  job->set_last_event("all 2 members of job 'train' have left cleanly");
  EXPECT_THAT(FormatTable(response, kNow),
              AllOf(Not(HasSubstr("next:")), Not(HasSubstr("look further"))));
}

TEST(StatusTest, WhatIsNotKnownAfterARestartIsNotZero) {
  auto [response, job] = ExampleOfAJob();
  job->set_state("ended");
  job->clear_last_event();
  v1::MemberDescription* const member = job->mutable_members(0);
  member->set_state("lost");
  member->set_restored(true);
  EXPECT_THAT(
      FormatTable(response, kNow),
      HasSubstr("  RANK  WORKER  HOST    STATE  STEP  SILENT  ADDRESS\n"
                "  1     b/7     host-b  lost   1234  -       10.0.0.2\n"
                "  -: not known, since the coordinator was restarted\n"));
  member->set_step(0);
  EXPECT_THAT(FormatTable(response, kNow),
              HasSubstr("  lost   -     -       10.0.0.2\n"));
  EXPECT_TRUE(nlohmann::json::parse(FormatJson(
      response, kNow))["jobs"][0]["members"][0]["heard_at"]
                  .is_null());
  job->clear_members();
  job->set_step(1234);
  EXPECT_THAT(FormatTable(response, kNow),
              HasSubstr("  its ranks are not known any more: the coordinator "
                        "was restarted since then; last step 1234\n"));
}

TEST(StatusTest, AJobThatFormsShowsWhatItWaitsForOnce) {
  auto [response, job] = ExampleOfAJob();
  job->set_state("forming");
  job->set_forming("1 of 2 workers are here");
  job->set_last_event("rank 1 on host b was lost; 1 of 2 workers are here");
  EXPECT_THAT(FormatTable(response, kNow),
              HasSubstr("  last end: rank 1 on host b was lost\n"
                        "  the next generation has not begun: 1 of 2 workers "
                        "are here\n"));
}

TEST(StatusTest, SeveralJobsAreATable) {
  v1::DescribeResponse response = Example();
  v1::JobDescription* const ended = response.add_jobs();
  ended->set_job("eval");
  ended->set_state("ended");
  ended->set_generation(9);
  ended->set_world_size(1);
  ended->set_step(50);
  ended->set_last_event("the only member of job 'eval' has left\ncleanly");
  ended->set_last_event_ms(60'000);
  response.mutable_jobs(0)->mutable_wait()->add_ranks(1);
  response.mutable_jobs(0)->mutable_wait()->set_waited_ms(5000);
  EXPECT_EQ(FormatTable(response, kNow, "h:1"),
            "coordinator c1, term 3, 2 jobs\n"
            "  JOB    STATE    GENERATION  WORKERS  STEP  LAST END             "
            "       "
            "      NOTE\n"
            "  train  running  2           1 of 2   1234  -                    "
            "       "
            "      waits for rank 1 (b/7 on host-b) for 5s\n"
            "  eval   ended    9           0 of 1   50    1m ago (2023-11-14 "
            "22:12:20 "
            "UTC)  the only member of job 'eval' has left?cleanly\n"
            "one of them: coxswain status --job NAME --coordinator h:1\n");
}

class AskStatusTest : public testing::Test {
 protected:
  AskStatusTest() {
    stub_.Answer<v1::DescribeRequest, v1::DescribeResponse>(
        "Rendezvous/Describe",
        [this](const v1::DescribeRequest& request,
               const CallOptions&) -> absl::StatusOr<v1::DescribeResponse> {
          if (request.job().empty()) return all_;
          return absl::NotFoundError("no job 'x' is known");
        });
  }

  std::string ErrorFor(const std::string& job) {
    StatusOptions options;
    options.coordinator = "h:1";
    options.job = job;
    return std::string(AskStatus(options, stub_, nullptr).status().message());
  }
  v1::DescribeResponse Jobs(const std::vector<std::string>& names) {
    v1::DescribeResponse response;
    for (const std::string& name : names) response.add_jobs()->set_job(name);
    return response;
  }

  FakeCoordinatorStub stub_;
  absl::StatusOr<v1::DescribeResponse> all_;
};

TEST_F(AskStatusTest, AnUnknownJobsErrorNamesThoseThatItMayBe) {
  all_ = Jobs({"mnist", "mnist-2", "resnet"});
  EXPECT_EQ(ErrorFor("mnsit"),
            "the coordinator at h:1 did not describe the job: no job 'x' is "
            "known; did you mean 'mnist'?");
  EXPECT_THAT(ErrorFor("bert"), HasSubstr("; it has mnist, mnist-2, resnet"));
  all_ = Jobs({"a1", "b2", "c3", "d4", "e5", "f6", "g7", "h8", "i9", "j0"});
  EXPECT_THAT(ErrorFor("bert"), HasSubstr("f6, g7, h8 and 2 more"));
  all_ = Jobs({});
  EXPECT_THAT(ErrorFor("bert"),
              HasSubstr("; it shows no jobs to you; is it the"));
}

TEST_F(AskStatusTest, ACallerThatMayNotSeeOtherJobsIsShownNone) {
  all_ = absl::PermissionDeniedError("of another job");
  EXPECT_EQ(ErrorFor("x"),
            "the coordinator at h:1 did not describe the job: no job 'x' is "
            "known");
}

TEST(StatusTest, JsonHasTheSameAndLosesNoDigits) {
  const auto json = nlohmann::json::parse(FormatJson(Example(), kNow));
  EXPECT_EQ(json["now"], 1700000000);
  EXPECT_EQ(json["cluster_id"], "c1");
  EXPECT_EQ(json["term"], 3);
  const auto& job = json["jobs"][0];
  EXPECT_EQ(job["generation"], 2);
  EXPECT_EQ(job["last_event"], "rank 1 on host b was lost");
  EXPECT_EQ(job["plan"]["accumulation_steps"], 4);
  EXPECT_EQ(job["plan"]["terms"]["tail"], "drop");
  EXPECT_EQ(job["plan"]["terms"]["enforcement"], "audit");
  const auto& member = job["members"][0];
  EXPECT_EQ(member["node"], "b");
  EXPECT_EQ(member["slot"], 7);
  EXPECT_EQ(member["step"], 1234);
  EXPECT_EQ(member["heard_at"], 1699999998.5);
  EXPECT_EQ(member["incarnation"], "ffffffffffffffff");
}

TEST(StatusTest, AnEarlierVersionsNamesAreThereToo) {
  const auto json = nlohmann::json::parse(FormatJson(Example(), kNow));
  EXPECT_EQ(json["jobs"][0]["members"][0]["silent_ms"], 1500);
}

TEST(StatusTest, JsonOfAnEmptyCoordinatorHasAnEmptyList) {
  const auto json = nlohmann::json::parse(FormatJson({}, kNow));
  EXPECT_TRUE(json["jobs"].is_array());
  EXPECT_TRUE(json["jobs"].empty());
}

}  // namespace
}  // namespace coxswain
