#include "schedule/pipeline/proof.h"

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/pipeline/generate.h"

namespace coxswain::pipeline {
namespace {

using testing::HasSubstr;

auto CannotRun(const std::string& text) {
  return StatusIs(absl::StatusCode::kFailedPrecondition, text);
}

absl::StatusOr<Schedule> WithItsTransfers(const std::string& spec, int ranks,
                                          int micro_batches) {
  const auto parsed = ScheduleSpec::Parse(spec);
  if (!parsed.ok()) return parsed.status();
  const auto compute = Generate(*parsed, ranks, micro_batches);
  return compute.ok() ? WithTransfers(*compute) : compute.status();
}

TEST(ProofTest, WithoutBuffersTheRanksOfACircleAreNamed) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, WithItsTransfers("1f1b", 2, 4));
  EXPECT_OK(Prove(schedule, 1));
  EXPECT_THAT(
      Prove(schedule, 0),
      CannotRun("it cannot run where a channel holds no messages: 2 ranks wait "
                "for each other\n"
                "  rank 0 waits at 0SEND_F1 for rank 1 to come to 1RECV_F1\n"
                "  rank 1 waits at 1SEND_B0 for rank 0 to come to 0RECV_B0"));
  EXPECT_THAT(LeastCapacity(schedule), IsOk());
  EXPECT_EQ(*LeastCapacity(schedule), 1);
}

TEST(ProofTest, FullChannelsAreNamed) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                       WithItsTransfers("interleaved(chunks=2)", 2, 5));
  EXPECT_THAT(
      Prove(schedule, 1),
      CannotRun("it cannot run where a channel holds 1 message: 2 ranks wait "
                "for each other\n"
                "  rank 0 waits at 2SEND_B2 for rank 1 to free a slot by "
                "1RECV_B1\n"
                "  rank 1 waits at 1SEND_F4 for rank 0 to free a slot by "
                "2RECV_F3"));
  EXPECT_OK(Prove(schedule, 2));
  EXPECT_EQ(*LeastCapacity(schedule), 2);
}

TEST(ProofTest, AWaitForASendIsAWaitForItsReceive) {
  // Rank 0 wants its activations to be taken before it takes gradients, and
  // rank 1 the other way round.
  ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      Schedule::FromCsv(
          "0F0,0F1,0SEND_F0,0SEND_F1,0WAIT_SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
          "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0,1RECV_F1,1F1,1B1,"
          "1SEND_B1\n"));
  EXPECT_THAT(
      Prove(schedule, 8),
      CannotRun(
          "it cannot run where a channel holds 8 messages: 2 ranks wait for "
          "each other\n"
          "  rank 0 waits at 0WAIT_SEND_F1 for rank 1 to come to 1RECV_F1\n"
          "  rank 1 waits at 1WAIT_SEND_B0 for rank 0 to come to 0RECV_B0"));
  EXPECT_THAT(LeastCapacity(schedule),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("0WAIT_SEND_F1")));
}

TEST(ProofTest, PassesInCrossedOrdersStopAtAnyCapacity) {
  // Rank 0 holds stages 0 and 2. Its 2F0 comes after 0F1, for which rank 1 does
  // not wait; its 0F1 here comes after 2F1, which is never possible.
  ASSERT_OK_AND_ASSIGN(const Schedule compute,
                       Schedule::FromCsv("0F0,2F0,2B0,0B0,0F1,2F1,2B1,0B1\n"
                                         "1F0,1F1,1B0,1B1,3F0,3F1,3B0,3B1\n"));
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, WithTransfers(compute));
  EXPECT_THAT(LeastCapacity(schedule),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("ranks wait for each other\n  rank 0 waits at "
                                 "2RECV_B0 for rank 1 to come to 3SEND_B0\n"
                                 "  rank 1 waits at 1RECV_F1 for rank 0 to "
                                 "come to 0SEND_F1")));
}

TEST(ProofTest, MessagesThatComeInAnotherOrderAreNamed) {
  ASSERT_OK_AND_ASSIGN(const Schedule compute,
                       Schedule::FromCsv("0F0,0F1,0B0,0B1\n"
                                         "1F1,1F0,1B0,1B1\n"));
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, WithTransfers(compute));
  EXPECT_THAT(Prove(schedule, 4),
              CannotRun("messages arrive in the order in which they are sent, "
                        "and rank 0 sends 0SEND_F0 where rank 1 awaits "
                        "1RECV_F1"));
}

TEST(ProofTest, ALongCircleIsCut) {
  // Each rank has two stages, far from each other, and waits for the next one.
  constexpr int kRanks = 20;
  std::string csv;
  for (int rank = 0; rank < kRanks; ++rank) {
    const int far = rank + kRanks;
    absl::StrAppend(&csv, far, "RECV_F0,", far, "F0,");
    if (far + 1 < 2 * kRanks) absl::StrAppend(&csv, far, "SEND_F0,");
    if (rank > 0) absl::StrAppend(&csv, rank, "RECV_F0,");
    absl::StrAppend(&csv, rank, "F0,", rank, "SEND_F0,");
    if (far + 1 < 2 * kRanks) absl::StrAppend(&csv, far, "RECV_B0,");
    absl::StrAppend(&csv, far, "B0,", far, "SEND_B0,");
    absl::StrAppend(&csv, rank, "RECV_B0,", rank, "B0");
    if (rank > 0) absl::StrAppend(&csv, ",", rank, "SEND_B0");
    csv += "\n";
  }
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, Schedule::FromCsv(csv));
  const absl::Status stopped = Prove(schedule, 4);
  EXPECT_THAT(stopped, StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("20 ranks wait for each other")));
  EXPECT_THAT(std::string(stopped.message()), HasSubstr("and so on, 4 more"));
}

TEST(ProofTest, WhatCannotBeAskedIsRefused) {
  ASSERT_OK_AND_ASSIGN(const Schedule compute, Generate(ScheduleSpec(), 2, 2));
  EXPECT_THAT(Prove(compute, 1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has no sends and receives")));
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, WithTransfers(compute));
  EXPECT_THAT(Prove(schedule, -1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1")));
}

TEST(ProofTest, WhatTorchWritesIsProved) {
  for (const char* name : {"interleaved_1f1b", "interleaved_1f1b_comms",
                           "zbv_comms", "dualpipev_comms", "looped_bfs"}) {
    std::ostringstream text;
    text << std::ifstream(
                absl::StrCat("schedule/pipeline/testdata/torch_2.15.0_", name,
                             ".csv"))
                .rdbuf();
    ASSERT_OK_AND_ASSIGN(const Schedule read, Schedule::FromCsv(text.str()));
    EXPECT_EQ(read.ranks(), 2) << name;
    EXPECT_EQ(read.stages(), 4) << name;
    ASSERT_OK_AND_ASSIGN(const Schedule schedule, WithTransfers(read));
    EXPECT_OK(Prove(schedule, 1)) << name;
  }
}

}  // namespace
}  // namespace coxswain::pipeline
