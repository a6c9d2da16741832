#include "schedule/schedule_wire.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain::schedule::schedule_wire_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Messages as version 0.1.0 has sent and stored them: the numbers of their
// fields, and their meaning, stay.
constexpr char kTicket[] =
    "0a05747261696e100c180b20022804310000000000000440380140034a04"
    "6670313651ffffffffffffffff5905000000000000006001690700000000"
    "00000072076e6f206c6f73737a0861207369676e616c8001018a01075349"
    "475445524d92010b616e206f70657261746f72";
constexpr char kVote[] =
    "0a05747261696e100c220a6e6f742066696e6974652a0861207369676e61"
    "6c";
constexpr char kPlan[] =
    "080410081a046670313620642a190a1070726f67726573735f74696d656f"
    "75741205316d3330732a0d0a047461696c12056361727279302038ffffff"
    "ffffffffffff01";
constexpr char kDecision[] =
    "0a05747261696e1029220a6e6f742066696e6974652a06656e6f75676832"
    "43080410081a046670313620642a190a1070726f67726573735f74696d65"
    "6f75741205316d3330732a0d0a047461696c12056361727279302038ffff"
    "ffffffffffffff013a0d322073706172657320776169744213636865636b"
    "706f696e745f65766572793d34324803";
constexpr char kManifest[] =
    "08041210706f7765727367642872616e6b3d32291808320c0a047461696c"
    "120464726f703865";

template <typename Message>
Message Parsed(const char* hex) {
  Message message;
  EXPECT_TRUE(message.ParseFromString(absl::HexStringToBytes(hex)));
  return message;
}

Ticket FullTicket() {
  Ticket ticket;
  ticket.round = 12;
  ticket.step = 11;
  ticket.micro = 1;
  ticket.micro_batches = 2;
  ticket.window = 4;
  ticket.weight = 2.5;
  ticket.end_of_data = true;
  ticket.plan_version = 3;
  ticket.hook = "fp16";
  ticket.layout = ~uint64_t{0};
  ticket.digest = 5;
  ticket.checksum = 7;
  ticket.skip = "no loss";
  ticket.stop = "a signal";
  ticket.drain = "SIGTERM";
  ticket.checkpoint = "an operator";
  return ticket;
}

void ExpectPlan(const Plan& plan) {
  EXPECT_EQ(plan.version, 4);
  EXPECT_EQ(plan.accumulation_steps, 8);
  EXPECT_EQ(plan.hook, "fp16");
  EXPECT_EQ(plan.compression_start_step, 100);
  EXPECT_EQ(plan.global_micro_batches, 32);
  EXPECT_EQ(plan.at_step, Plan::kAtNextStep);
  EXPECT_THAT(plan.terms.Changed(),
              ElementsAre("progress_timeout=1m30s", "tail=carry"));
}

void ExpectDecision(const Decision& decision) {
  EXPECT_EQ(decision.round, 41);
  EXPECT_FALSE(decision.commit);
  EXPECT_EQ(decision.reason, "not finite");
  EXPECT_EQ(decision.stop, "enough");
  EXPECT_EQ(decision.regroup, "2 spares wait");
  EXPECT_EQ(decision.checkpoint, "checkpoint_every=42");
  ASSERT_TRUE(decision.plan.has_value());
  ExpectPlan(*decision.plan);
}

TEST(RecordedBytesTest, ATicketIsReadAndWrittenAsItWas) {
  EXPECT_EQ(
      absl::BytesToHexString(ToWire("train", FullTicket()).SerializeAsString()),
      kTicket);
  v1::Ticket wire = Parsed<v1::Ticket>(kTicket);
  EXPECT_EQ(wire.stream(), "train");
  ASSERT_OK_AND_ASSIGN(const Ticket ticket, TakeTicket(&wire));
  EXPECT_EQ(absl::BytesToHexString(ToWire("train", ticket).SerializeAsString()),
            kTicket);
  EXPECT_EQ(ticket.checksum, 7u);
  EXPECT_EQ(ticket.layout, ~uint64_t{0});
}

// Jobs without a pipeline have the bytes above.
TEST(RecordedBytesTest, ATicketOfAPipelineHasItsHashBesides) {
  Ticket ticket = FullTicket();
  ticket.pipeline = 0x0123456789abcdef;
  const std::string hex =
      absl::BytesToHexString(ToWire("train", ticket).SerializeAsString());
  EXPECT_EQ(hex, absl::StrCat(kTicket, "9901efcdab8967452301"));
  v1::Ticket wire = Parsed<v1::Ticket>(hex.c_str());
  ASSERT_OK_AND_ASSIGN(const Ticket taken, TakeTicket(&wire));
  EXPECT_EQ(taken.pipeline, ticket.pipeline);
}

TEST(RecordedBytesTest, ATicketOfAMeshMayHaveASecondChecksum) {
  Ticket ticket = FullTicket();
  ticket.replicated_checksum = 0x0123456789abcdef;
  const std::string hex =
      absl::BytesToHexString(ToWire("train", ticket).SerializeAsString());
  EXPECT_EQ(hex, absl::StrCat(kTicket, "a00101a901efcdab8967452301"));
  v1::Ticket wire = Parsed<v1::Ticket>(hex.c_str());
  ASSERT_OK_AND_ASSIGN(const Ticket taken, TakeTicket(&wire));
  EXPECT_EQ(taken.replicated_checksum, ticket.replicated_checksum);
}

TEST(RecordedBytesTest, APlanOfAJobWithoutAPipelineDoesNotNameOne) {
  Plan plan;
  EXPECT_THAT(ToWire(plan).terms(), testing::IsEmpty());
  plan.terms.pipeline = "1f1b";
  EXPECT_THAT(ToWire(plan).terms(), ElementsAre(Pair("pipeline", "1f1b")));
}

TEST(RecordedBytesTest, AVoteIsReadAndWrittenAsItWas) {
  v1::Vote wire = Parsed<v1::Vote>(kVote);
  ASSERT_OK_AND_ASSIGN(const Vote vote, TakeVote(&wire));
  EXPECT_EQ(vote.round, 12);
  EXPECT_FALSE(vote.commit);
  EXPECT_EQ(vote.reason, "not finite");
  EXPECT_EQ(vote.stop, "a signal");
  EXPECT_EQ(absl::BytesToHexString(ToWire("train", vote).SerializeAsString()),
            kVote);
}

TEST(RecordedBytesTest, APlanIsReadAsItWas) {
  ASSERT_OK_AND_ASSIGN(const Plan plan, PlanFromWire(Parsed<v1::Plan>(kPlan)));
  ExpectPlan(plan);
}

TEST(RecordedBytesTest, ADecisionIsReadAsItWas) {
  v1::Decision wire = Parsed<v1::Decision>(kDecision);
  EXPECT_EQ(wire.fallback_epoch(), 3);
  ASSERT_OK_AND_ASSIGN(const Decision decision, TakeDecision(&wire));
  ExpectDecision(decision);
}

// Workers and coordinators of other versions know these by their numbers.
TEST(RecordedBytesTest, FallbackMessagesAreWrittenAsTheyWere) {
  const auto hex = [](const auto& message) {
    return absl::BytesToHexString(message.SerializeAsString());
  };
  v1::AttachRequest request;
  request.mutable_hello()->set_fallback_address("a:1");
  request.mutable_hello()->set_rank(2);
  EXPECT_EQ(hex(request), "0a071203613a311802");
  request.mutable_fallback_report()->set_fallback_epoch(3);
  EXPECT_EQ(hex(request), "3a020803");
  request.mutable_fallback_release();
  EXPECT_EQ(hex(request), "4200");
  v1::AttachEvent event;
  event.mutable_attached()->set_term(1);
  event.mutable_attached()->set_fallback_epoch(2);
  EXPECT_EQ(hex(event), "0a0408011002");
  event.mutable_fallback_address()->set_rank(1);
  event.mutable_fallback_address()->set_address("a:1");
  EXPECT_EQ(hex(event), "3a0708011203613a31");
  Message message;
  message.kind = Message::Kind::kDecision;
  message.epoch = {3, 2};
  EXPECT_EQ(hex(ToWire(message).decision()), "18014803")
      << "the term is that of the stream";
  v1::LeaveRequest leave;
  leave.set_fallback_epoch(3);
  EXPECT_EQ(hex(leave), "3003");
}

TEST(RecordedBytesTest, AManifestIsReadAsItWas) {
  const StepSettings settings =
      SettingsFromWire(Parsed<v1::Manifest>(kManifest));
  EXPECT_EQ(settings.hook, "powersgd(rank=2)");
  EXPECT_EQ(settings.accumulation_steps, 8);
  EXPECT_EQ(settings.compression_start_step, 100);
  v1::Manifest again;
  again.set_world_size(4);
  (*again.mutable_terms())["tail"] = "drop";
  SettingsToWire(settings, &again);
  EXPECT_EQ(absl::BytesToHexString(again.SerializeAsString()), kManifest);
}

TEST(ScheduleWireTest, ATicketKeepsEveryField) {
  const v1::Ticket wire = ToWire("train", FullTicket());
  EXPECT_EQ(wire.stream(), "train");
  EXPECT_EQ(wire.round(), 12);
  EXPECT_EQ(wire.step(), 11);
  EXPECT_EQ(wire.micro(), 1);
  EXPECT_EQ(wire.micro_batches(), 2);
  EXPECT_EQ(wire.window(), 4);
  EXPECT_EQ(wire.weight(), 2.5);
  EXPECT_TRUE(wire.end_of_data());
  EXPECT_EQ(wire.plan_version(), 3);
  EXPECT_EQ(wire.hook(), "fp16");
  EXPECT_EQ(wire.layout(), ~uint64_t{0});
  EXPECT_EQ(wire.digest(), 5u);
  EXPECT_TRUE(wire.has_checksum());
  EXPECT_EQ(wire.checksum(), 7u);
  EXPECT_EQ(wire.skip(), "no loss");
  EXPECT_EQ(wire.stop(), "a signal");
  EXPECT_EQ(wire.drain(), "SIGTERM");
  EXPECT_EQ(wire.checkpoint(), "an operator");
  Ticket zero;
  zero.checksum = 0;
  v1::Ticket of_zero = ToWire("train", zero);
  EXPECT_TRUE(of_zero.has_checksum());
  EXPECT_FALSE(of_zero.has_replicated_checksum());
  ASSERT_OK_AND_ASSIGN(const Ticket taken, TakeTicket(&of_zero));
  EXPECT_EQ(taken.checksum, std::optional<uint64_t>(0));
  v1::Ticket bare = ToWire("train", Ticket());
  ASSERT_OK_AND_ASSIGN(const Ticket ticket, TakeTicket(&bare));
  EXPECT_FALSE(ticket.checksum.has_value());
}

TEST(ScheduleWireTest, AChangeLeavesWhatANewerVersionSent) {
  Plan plan;
  plan.version = 3;
  plan.hook = "fp16";
  v1::Plan wire = ToWire(plan);
  wire.clear_terms();
  (*wire.mutable_terms())["of_a_newer_version"] = "yes";
  plan.hook = "bf16";
  plan.compression_start_step = 0;
  plan.at_step = 7;
  ASSERT_OK(plan.terms.Set("tail", "drop"));
  ASSERT_OK(plan.terms.Set("max_steps", "5"));
  ChangeWire(plan, {"tail"}, &wire);
  EXPECT_EQ(wire.hook(), "bf16");
  EXPECT_EQ(wire.compression_start_step(), 0);
  EXPECT_EQ(wire.at_step(), 7);
  const std::map<std::string, std::string> terms(wire.terms().begin(),
                                                 wire.terms().end());
  EXPECT_THAT(terms, ElementsAre(Pair("of_a_newer_version", "yes"),
                                 Pair("tail", "drop")));
}

TEST(ScheduleWireTest, AVoteKeepsEveryField) {
  Vote vote;
  vote.round = 12;
  vote.commit = false;
  vote.reason = "not finite";
  vote.stop = "a signal";
  const v1::Vote wire = ToWire("eval", vote);
  EXPECT_EQ(wire.stream(), "eval");
  EXPECT_EQ(wire.round(), 12);
  EXPECT_FALSE(wire.commit());
  EXPECT_EQ(wire.reason(), "not finite");
  EXPECT_EQ(wire.stop(), "a signal");
  EXPECT_FALSE(wire.has_sums());
}

TEST(ScheduleWireTest, SumsTravelWhereTheyAre) {
  Vote vote;
  vote.round = 12;
  const std::string before = ToWire("train", vote).SerializeAsString();
  vote.sums = GradientSums{0.1, 3};
  v1::Vote wire = ToWire("train", vote);
  ASSERT_OK_AND_ASSIGN(const Vote back, TakeVote(&wire));
  ASSERT_TRUE(back.sums.has_value());
  EXPECT_EQ(back.sums->sum_of_squares, 0.1);
  EXPECT_EQ(back.sums->non_finite, 3);
  wire.clear_sums();
  EXPECT_EQ(wire.SerializeAsString(), before);
  wire.mutable_sums()->set_non_finite(-1);
  EXPECT_THAT(TakeVote(&wire), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("vote.sums.non_finite")));

  Decision decision;
  decision.sums = GradientSums{};
  v1::Decision sent = ToWire("train", decision);
  ASSERT_OK_AND_ASSIGN(const Decision taken, TakeDecision(&sent));
  EXPECT_TRUE(taken.sums.has_value()) << "a sum of 0 is one";
  sent.clear_sums();
  ASSERT_OK_AND_ASSIGN(const Decision without, TakeDecision(&sent));
  EXPECT_FALSE(without.sums.has_value());
}

TEST(ScheduleWireTest, ADecisionBringsAPlan) {
  v1::Decision wire;
  wire.set_commit(true);
  wire.set_stop("enough");
  v1::Decision without = wire;
  ASSERT_OK_AND_ASSIGN(const Decision bare, TakeDecision(&without));
  EXPECT_TRUE(bare.commit);
  EXPECT_EQ(bare.stop, "enough");
  EXPECT_FALSE(bare.plan.has_value());
  *wire.mutable_plan() = Parsed<v1::Plan>(kPlan);
  ASSERT_OK_AND_ASSIGN(const Decision decision, TakeDecision(&wire));
  ASSERT_TRUE(decision.plan.has_value());
  ExpectPlan(*decision.plan);
}

TEST(ScheduleWireTest, ADecisionNamesAFewNewcomers) {
  Decision decision;
  for (uint64_t i = 0; i < kMaxNewcomers + 1; ++i) {
    decision.newcomers.push_back({absl::StrCat("host-b:", i), i + 10, i + 20});
  }
  v1::Decision wire = ToWire("train", decision);
  ASSERT_OK_AND_ASSIGN(const Decision received, TakeDecision(&wire));
  ASSERT_EQ(received.newcomers.size(), kMaxNewcomers);
  EXPECT_EQ(received.newcomers[3].address, "host-b:3");
  EXPECT_EQ(received.newcomers[3].secret, 13u);
  EXPECT_EQ(received.newcomers[3].incarnation, 23u);
}

TEST(ScheduleWireTest, ATermThatHasItsDefaultIsNotSent) {
  Plan plan;
  plan.version = 1;
  ASSERT_OK(plan.terms.Set("windows", "program"));
  ASSERT_OK(plan.terms.Set("tail", "drop"));
  ASSERT_OK(plan.terms.Set("windows", "plan"));
  const v1::Plan wire = ToWire(plan);
  const std::map<std::string, std::string> terms(wire.terms().begin(),
                                                 wire.terms().end());
  EXPECT_THAT(terms, ElementsAre(Pair("tail", "drop")))
      << "a version that does not know the others follows it";
  ASSERT_OK_AND_ASSIGN(const Plan again, PlanFromWire(wire));
  EXPECT_EQ(again.terms, plan.terms);
}

TEST(ScheduleWireTest, TermsOfANewerCoordinatorAreNamed) {
  v1::Plan wire;
  wire.set_version(4);
  (*wire.mutable_terms())["gravity"] = "9.81";
  EXPECT_THAT(PlanOfCoordinator(wire),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("plan 4"), HasSubstr("\"gravity\""),
                             HasSubstr("update this worker"))));
  EXPECT_THAT(PlanFromWire(wire), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("\"gravity\"")));
}

TEST(ScheduleWireTest, WhatIsKnownOfAPlanCanBeShown) {
  v1::Plan wire = Parsed<v1::Plan>(kPlan);
  (*wire.mutable_terms())["gravity"] = "9.81";
  (*wire.mutable_terms())["weighting"] = "mass";
  std::map<std::string, std::string> unknown;
  ExpectPlan(KnownPartOf(wire, &unknown));
  EXPECT_THAT(unknown,
              ElementsAre(Pair("gravity", "9.81"), Pair("weighting", "mass")));
}

TEST(ScheduleWireTest, APositionIsADecisionOnItsWayBack) {
  Decision received;
  received.round = 41;
  received.commit = false;
  received.reason = "not finite";
  received.stop = "enough";
  received.regroup = "2 spares wait";
  received.checkpoint = "checkpoint_every=42";
  ASSERT_OK_AND_ASSIGN(received.plan, PlanFromWire(Parsed<v1::Plan>(kPlan)));
  v1::Position wire;
  *wire.mutable_last() = ToWire("train", received);
  EXPECT_EQ(wire.last().stream(), "train");
  EXPECT_EQ(wire.last().round(), 41);
  ASSERT_OK_AND_ASSIGN(const Decision back, TakePosition(&wire));
  ExpectDecision(back);
}

TEST(ScheduleWireTest, APositionWithTermsThatContradictEachOtherIsRefused) {
  v1::Position wire;
  v1::Plan& plan = *wire.mutable_last()->mutable_plan();
  plan.set_version(1);
  (*plan.mutable_terms())["sync_each_batch"] = "true";
  (*plan.mutable_terms())["weighting"] = "tokens";
  EXPECT_THAT(TakePosition(&wire), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("do not go together")));
}

}  // namespace
}  // namespace coxswain::schedule::schedule_wire_test
