// The names and forms that docs/observability.md promises. That HTTP and the
// command line have the same: tests/deploy/observability_test.cc.
#include "server/describe/json.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/describe/messages.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

const absl::Time kThen = absl::FromUnixMillis(1'700'000'000'500);

TEST(DescribeJsonTest, AMember) {
  v1::MemberDescription described;
  described.mutable_member()->mutable_identity()->set_node("b");
  described.mutable_member()->mutable_identity()->set_slot(7);
  described.mutable_member()->set_rank(1);
  described.mutable_member()->set_local_rank(2);
  described.mutable_member()->set_host("host-b");
  described.mutable_member()->set_address("10.0.0.2");
  described.mutable_member()->set_incarnation(0xab);
  described.set_state("attached");
  described.set_step(3);
  described.set_micro_batches(4);
  described.set_collective_sequence(5);
  described.set_rounds(6);
  described.set_bucket(7);
  described.set_activity("waits");
  described.set_payload_bytes(8);
  described.set_wire_bytes(9);
  described.set_silent_ms(1500);
  described.set_restored(true);
  described.set_departure("its program ended");
  EXPECT_EQ(MemberJson(described, kThen), Json::parse(R"({
    "node": "b", "slot": 7, "rank": 1, "local_rank": 2, "host": "host-b",
    "address": "10.0.0.2", "incarnation": "00000000000000ab",
    "state": "attached", "departure": "its program ended", "restored": true,
    "heard_at": 1700000000.5, "step": 3,
    "micro_batches": 4, "collective_sequence": 5, "rounds": 6, "bucket": 7,
    "activity": "waits", "payload_bytes": 8, "wire_bytes": 9})"));
  EXPECT_TRUE(
      MemberJson(described, absl::InfinitePast())["heard_at"].is_null());
}

TEST(DescribeJsonTest, AJobIsAsFarAsItsFirstMember) {
  v1::JobDescription job;
  job.set_job("mnist");
  job.set_state("running");
  job.set_generation(4);
  job.set_attempt(1);
  job.set_world_size(3);
  job.set_min_world_size(2);
  job.set_last_event("rank 1 was lost");
  job.add_members()->set_step(10);
  job.add_members()->set_step(9);
  EXPECT_EQ(JobJson(job, kThen, absl::InfinitePast()), Json::parse(R"({
    "job": "mnist", "state": "running", "generation": 4, "attempt": 1,
    "world_size": 3, "min_world_size": 2, "member_count": 2, "step": 10,
    "last_event": "rank 1 was lost", "last_event_at": 1700000000.5,
    "wait": null, "forming": "", "ring": null, "plan": null})"));
  job.mutable_plan()->set_version(2);
  job.set_step(11);
  job.mutable_wait()->add_ranks(1);
  job.mutable_wait()->set_finding("rank 1 has not announced it");
  const Json later = JobJson(job, absl::InfinitePast(), kThen);
  EXPECT_EQ(later["plan"]["version"], 2);
  EXPECT_EQ(later["step"], 11) << "of members that are not known any more";
  EXPECT_TRUE(later["last_event_at"].is_null());
  EXPECT_EQ(later["wait"], Json::parse(R"({
    "ranks": [1], "since_at": 1700000000.5,
    "finding": "rank 1 has not announced it"})"));
}

TEST(DescribeJsonTest, WhatBelongsToAMeshIsThereWhereThereIsOne) {
  v1::JobDescription job;
  job.set_mesh("dp=2,shard=2");
  const Json json = JobJson(job, kThen, absl::InfinitePast());
  EXPECT_EQ(json["mesh"], "dp=2,shard=2");
  EXPECT_EQ(json["placement"], "");
  v1::MemberDescription described;
  EXPECT_FALSE(MemberJson(described, kThen).contains("coordinates"));
  described.mutable_member()->set_coordinates("dp 1, shard 0");
  EXPECT_EQ(MemberJson(described, kThen)["coordinates"], "dp 1, shard 0");
}

TEST(DescribeJsonTest, APipelineIsThereWhereThereIsOne) {
  EXPECT_FALSE(JobJson(v1::JobDescription(), kThen, absl::InfinitePast())
                   .contains("pipeline"));
  PipelineReport report;
  report.schedule = "1f1b";
  report.micro_batches = 4;
  report.findings = {"stage 0 has been in 0F0"};
  report.lanes = {{{"0F0", 0, 1.5}}, {}};
  report.measured = true;
  PipelineReport::Rank rank;
  rank.lane = 1;
  rank.step = 7;
  rank.in = "1RECV_F0";
  rank.in_it = absl::Seconds(3);
  rank.at = 1.5;
  for (int other = 0; other < 20; ++other) rank.waits_for.push_back(other);
  report.ranks = {rank, PipelineReport::Rank()};
  v1::JobDescription job;
  *job.mutable_pipeline() = ToProto(report);
  const Json json = JobJson(job, kThen, absl::InfinitePast())["pipeline"];
  EXPECT_EQ(json["schedule"], "1f1b");
  EXPECT_EQ(json["findings"], Json({"stage 0 has been in 0F0"}));
  EXPECT_EQ(json["lanes"][0][0],
            Json({{"action", "0F0"}, {"begin", 0.0}, {"end", 1.5}}));
  EXPECT_TRUE(json["measured"]);
  EXPECT_EQ(json["ranks"][0]["action"], "1RECV_F0");
  EXPECT_EQ(json["ranks"][0]["seconds"], 3.0);
  EXPECT_EQ(json["ranks"][0]["waits_for"].size(), 8u);
  EXPECT_EQ(json["ranks"][0]["at"], 1.5);
  EXPECT_TRUE(json["ranks"][1]["step"].is_null());
  EXPECT_TRUE(json["ranks"][1]["at"].is_null()) << "there is no mark of it";
}

TEST(DescribeJsonTest, ARound) {
  v1::RoundRecord round;
  round.set_stream("train");
  round.set_round(7);
  round.set_step(8);
  round.set_reason("rank 0: a gradient is not finite");
  round.set_last_rank(1);
  round.set_plan_version(3);
  EXPECT_EQ(RoundJson(round, kThen, absl::Microseconds(250)), Json::parse(R"({
    "stream": "train", "round": 7, "step": 8, "commit": false,
    "reason": "rank 0: a gradient is not finite", "decided_at": 1700000000.5,
    "tickets_seconds": 0.00025, "last_rank": 1, "plan_version": 3})"));
}

TEST(DescribeJsonTest, APlanHasAllTermsAndNamesThoseThatAreNotTheDefaults) {
  v1::Plan plan;
  plan.set_version(2);
  plan.set_hook("bf16");
  plan.set_accumulation_steps(4);
  plan.set_compression_start_step(-1);
  plan.set_global_micro_batches(16);
  plan.set_at_step(200);
  (*plan.mutable_terms())["tail"] = "drop";
  (*plan.mutable_terms())["from_the_future"] = "yes";
  Json json = PlanJson(plan);
  EXPECT_EQ(json["terms"]["tail"], "drop");
  EXPECT_EQ(json["terms"]["from_the_future"], "yes");
  EXPECT_EQ(json["terms"]["enforcement"], "audit");
  json.erase("terms");
  EXPECT_EQ(json, Json::parse(R"({
    "version": 2, "hook": "bf16", "accumulation_steps": 4,
    "compression_start_step": -1, "global_micro_batches": 16, "at_step": 200,
    "changed": ["from_the_future", "tail"]})"));
}

TEST(DescribeJsonTest, ACheckpoint) {
  v1::CheckpointInfo checkpoint;
  checkpoint.set_checkpoint_id("step-20");
  checkpoint.set_job("mnist");
  checkpoint.set_step(20);
  checkpoint.set_shards(2);
  checkpoint.set_bytes(1500);
  checkpoint.set_created_unix_ms(absl::ToUnixMillis(kThen));
  EXPECT_EQ(CheckpointJson(checkpoint), Json::parse(R"({
    "id": "step-20", "job": "mnist", "step": 20, "generation": 0,
    "imported": true, "state": "complete", "shards": 2, "bytes": 1500,
    "created_at": 1700000000.5})"));
}

TEST(DescribeJsonTest, AnEventIsALineOfTheLog) {
  v1::JournalEvent event;
  event.set_sequence(3);
  event.set_unix_us(absl::ToUnixMicros(kThen));
  event.set_level("warning");
  event.set_event("member_lost");
  event.set_job("mnist");
  event.set_generation(4);
  event.set_rank(1);
  event.set_step(-1);
  v1::JournalField* const field = event.add_fields();
  field->set_key("reason");
  field->set_value("exit code 7");
  EXPECT_THAT(EventLine(event, LogFormat::kText),
              HasSubstr(" W member_lost job=mnist generation=4 rank=1 "
                        "reason=\"exit code 7\""));
  EXPECT_EQ(Json::parse(EventLine(event, LogFormat::kJson)), Json::parse(R"({
    "time": "2023-11-14T22:13:20.500000Z", "sequence": 3, "level": "warning",
    "event": "member_lost", "job": "mnist", "generation": 4, "rank": 1,
    "reason": "exit code 7"})"));
}

TEST(DescribeJsonTest, WhatIsNoUtf8IsReplaced) {
  EXPECT_EQ(Dump({{"host", "\xff"}}), "{\"host\":\"\xef\xbf\xbd\"}");
}

}  // namespace
}  // namespace coxswain::server
