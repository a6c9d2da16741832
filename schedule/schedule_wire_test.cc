#include "schedule/schedule_wire.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain::schedule::schedule_wire_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ScheduleWireTest, ATicketKeepsEveryField) {
  StepAgent::Outgoing outgoing;
  outgoing.round = 12;
  outgoing.stop = "a signal";
  Ticket& ticket = outgoing.ticket.emplace();
  ticket.step = 11;
  ticket.micro = 1;
  ticket.micro_batches = 2;
  ticket.window = 4;
  ticket.weight = 2.5;
  ticket.end_of_data = true;
  ticket.plan_version = 3;
  ticket.hook = "fp16(allreduce)";
  ticket.layout = ~uint64_t{0};
  ticket.digest = 5;
  ticket.checksum = 0;
  ticket.skip = "no loss";
  const v1::AttachRequest request = ToWire("train", outgoing);
  const v1::Ticket& wire = request.ticket();
  EXPECT_EQ(wire.stream(), "train");
  EXPECT_EQ(wire.round(), 12);
  EXPECT_EQ(wire.step(), 11);
  EXPECT_EQ(wire.micro(), 1);
  EXPECT_EQ(wire.micro_batches(), 2);
  EXPECT_EQ(wire.window(), 4);
  EXPECT_EQ(wire.weight(), 2.5);
  EXPECT_TRUE(wire.end_of_data());
  EXPECT_EQ(wire.plan_version(), 3);
  EXPECT_EQ(wire.hook(), "fp16(allreduce)");
  EXPECT_EQ(wire.layout(), ~uint64_t{0});
  EXPECT_EQ(wire.digest(), 5u);
  EXPECT_TRUE(wire.has_checksum());
  EXPECT_EQ(wire.skip(), "no loss");
  EXPECT_EQ(wire.stop(), "a signal");
}

TEST(ScheduleWireTest, AVoteKeepsEveryField) {
  StepAgent::Outgoing outgoing;
  outgoing.round = 12;
  outgoing.stop = "a signal";
  outgoing.vote.emplace();
  outgoing.vote->commit = false;
  outgoing.vote->reason = "not finite";
  const v1::AttachRequest request = ToWire("eval", outgoing);
  const v1::Vote& wire = request.vote();
  EXPECT_EQ(wire.stream(), "eval");
  EXPECT_EQ(wire.round(), 12);
  EXPECT_FALSE(wire.commit());
  EXPECT_EQ(wire.reason(), "not finite");
  EXPECT_EQ(wire.stop(), "a signal");
}

TEST(ScheduleWireTest, ADecisionBringsAPlan) {
  v1::Decision wire;
  wire.set_commit(true);
  wire.set_stop("enough");
  ASSERT_OK_AND_ASSIGN(const Decision bare, FromWire(wire));
  EXPECT_TRUE(bare.commit);
  EXPECT_EQ(bare.stop, "enough");
  EXPECT_FALSE(bare.plan.has_value());
  wire.mutable_plan()->set_version(4);
  wire.mutable_plan()->set_accumulation_steps(8);
  wire.mutable_plan()->set_hook("fp16");
  wire.mutable_plan()->set_compression_start_step(100);
  wire.mutable_plan()->set_global_micro_batches(32);
  (*wire.mutable_plan()->mutable_terms())["tail"] = "carry";
  ASSERT_OK_AND_ASSIGN(const Decision decision, FromWire(wire));
  ASSERT_TRUE(decision.plan.has_value());
  EXPECT_EQ(decision.plan->version, 4);
  EXPECT_EQ(decision.plan->accumulation_steps, 8);
  EXPECT_EQ(decision.plan->hook, "fp16");
  EXPECT_EQ(decision.plan->compression_start_step, 100);
  EXPECT_EQ(decision.plan->global_micro_batches, 32);
  EXPECT_EQ(decision.plan->terms.tail, TailPolicy::kCarry);
}

TEST(ScheduleWireTest, TermsOfANewerCoordinatorAreNamed) {
  v1::Plan wire;
  wire.set_version(4);
  (*wire.mutable_terms())["gravity"] = "9.81";
  EXPECT_THAT(FromWire(wire),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("plan 4"), HasSubstr("\"gravity\""),
                             HasSubstr("update this worker"))));
}

TEST(ScheduleWireTest, APositionIsADecisionOnItsWayBack) {
  StepAgent::Heard heard;
  heard.round = 41;
  heard.decision.commit = false;
  heard.decision.reason = "not finite";
  heard.decision.stop = "enough";
  heard.decision.regroup = "2 spares wait";
  heard.decision.checkpoint = "checkpoint_every=42";
  heard.decision.plan.emplace();
  heard.decision.plan->version = 4;
  heard.decision.plan->accumulation_steps = 8;
  heard.decision.plan->hook = "fp16";
  heard.decision.plan->compression_start_step = 100;
  heard.decision.plan->global_micro_batches = 32;
  heard.decision.plan->terms.tail = TailPolicy::kCarry;
  const v1::AttachRequest request = ToWire("train", heard);
  ASSERT_TRUE(request.has_position());
  const v1::Decision& wire = request.position().last();
  EXPECT_EQ(wire.stream(), "train");
  EXPECT_EQ(wire.round(), 41);
  ASSERT_OK_AND_ASSIGN(const Decision back, FromWire(wire));
  EXPECT_FALSE(back.commit);
  EXPECT_EQ(back.reason, "not finite");
  EXPECT_EQ(back.stop, "enough");
  EXPECT_EQ(back.regroup, "2 spares wait");
  EXPECT_EQ(back.checkpoint, "checkpoint_every=42");
  ASSERT_TRUE(back.plan.has_value());
  EXPECT_EQ(back.plan->version, 4);
  EXPECT_EQ(back.plan->accumulation_steps, 8);
  EXPECT_EQ(back.plan->hook, "fp16");
  EXPECT_EQ(back.plan->compression_start_step, 100);
  EXPECT_EQ(back.plan->global_micro_batches, 32);
  EXPECT_EQ(back.plan->terms.tail, TailPolicy::kCarry);
}

}  // namespace
}  // namespace coxswain::schedule::schedule_wire_test
