#include "cli/status.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

using testing::HasSubstr;

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

TEST(StatusTest, TheTableShowsEachWorkersRankAndHost) {
  EXPECT_EQ(FormatTable(Example()),
            "coordinator c1, term 3, 1 job\n"
            "job train: running, generation 2, world size 2, hook "
            "powersgd(rank=2), accumulation 4, tail=drop\n"
            "  last end: rank 1 on host b was lost\n"
            "  RANK  WORKER  HOST    STATE     STEP  SILENT  ADDRESS\n"
            "  1     b/7     host-b  attached  1234  1.5s    10.0.0.2\n");
}

TEST(StatusTest, NoTextOfAWorkerControlsTheTerminal) {
  v1::DescribeResponse response = Example();
  v1::JobDescription* const job = response.mutable_jobs(0);
  job->set_last_event("gone\x1b[2J\njob evil: running");
  job->mutable_plan()->set_hook("h\x1b]0;title\x07");
  job->mutable_members(0)->mutable_member()->set_host(
      "a\xc2\x9b"
      "2J");
  const std::string table = FormatTable(response);
  EXPECT_THAT(table, HasSubstr("last end: gone?[2J?job evil: running\n"));
  EXPECT_THAT(table, HasSubstr("hook h?]0;title?, "));
  EXPECT_THAT(table, HasSubstr("a?2J "));
}

TEST(StatusTest, AnElasticJobShowsItsBoundsItsSparesAndItsAttempt) {
  v1::DescribeResponse response = Example();
  v1::JobDescription* job = response.mutable_jobs(0);
  job->set_min_world_size(1);
  job->set_attempt(4);
  v1::MemberDescription* spare = job->add_spares();
  *spare = job->members(0);
  spare->set_state("spare");
  spare->set_step(0);
  spare->mutable_member()->set_rank(-1);
  spare->mutable_member()->mutable_identity()->set_slot(8);
  EXPECT_EQ(FormatTable(response),
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
  EXPECT_THAT(FormatTable(none), HasSubstr("0 jobs"));
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
