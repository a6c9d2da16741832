#include "schedule/stall.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/types.pb.h"
#include "transport/error_detail.h"

namespace coxswain::schedule::stall_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);
constexpr absl::Duration kTimeout = absl::Seconds(10);

// Returns a job in the middle of step 7, whose ranks moved `idle` ago.
StallInput Job(int world_size, absl::Duration idle) {
  StallInput input;
  input.progress_timeout = kTimeout;
  for (int rank = 0; rank < world_size; ++rank) {
    RankActivity& it = input.ranks.emplace_back();
    it.ticket.emplace();
    it.ticket->stream = "train";
    it.ticket->round = 7;
    it.ticket->step = 7;
    it.ticket->at = kNow - idle;
    it.ticket->decided = true;
    it.rounds = 8;
    it.collective_sequence = 80;
    it.bucket = 2;
    it.micro_batches = 32;
    it.progressed = kNow - idle;
    it.last_contact = kNow;
  }
  return input;
}

OpenRound Waits(std::vector<int> missing, absl::Duration waited) {
  OpenRound round;
  round.stream = "train";
  round.round = 8;
  round.step = 8;
  round.missing = std::move(missing);
  round.since = kNow - waited;
  return round;
}

pipeline::Holder HolderOf(int rank, absl::Duration since) {
  pipeline::Holder holder;
  holder.rank = rank;
  holder.stage = rank;
  holder.since = since;
  holder.median = absl::Milliseconds(210);
  holder.waiters = 2;
  holder.sentence = "stage 1 has been in 1F7";
  return holder;
}

TEST(StallTest, ARankThatHoldsUpAPipelineIsTheOutlier) {
  StallInput input = Job(3, absl::Seconds(1));
  input.pipeline.emplace();
  input.pipeline->in = {"0RECV_B0", "1F7", "2RECV_F7"};
  input.pipeline->waits_for = {{1}, {}, {1}};
  input.pipeline->holders = {HolderOf(1, absl::Seconds(2))};
  EXPECT_THAT(FindStall(kNow, input).outliers, IsEmpty()) << "that is usual";
  input.pipeline->holders = {HolderOf(1, absl::Seconds(4))};
  StallReport report = FindStall(kNow, input);
  EXPECT_FALSE(report.stalled);
  EXPECT_THAT(report.outliers, ElementsAre(1));
  EXPECT_THAT(report.findings, ElementsAre("stage 1 has been in 1F7"));
  EXPECT_EQ(report.since, kNow - absl::Seconds(4));
  // Passes of a second each are not.
  input.pipeline->holders[0].median = absl::Seconds(1.5);
  EXPECT_THAT(FindStall(kNow, input).outliers, IsEmpty());
  input.pipeline->holders = {HolderOf(1, kTimeout)};
  report = FindStall(kNow, input);
  EXPECT_TRUE(report.stalled);
  EXPECT_THAT(report.error, StatusIs(absl::StatusCode::kAborted,
                                     AllOf(HasSubstr("stage 1 has been in 1F7"),
                                           HasSubstr("look at rank 1"))));
}

// The coordinator stood still, or ranks were not attached.
TEST(StallTest, WaitsOfAPipelineCountFromWhenTheyAreLookedAtAgain) {
  StallInput input = Job(3, absl::Seconds(1));
  input.pipeline.emplace();
  input.pipeline->in = {"0RECV_B0", "1F7", "2RECV_F7"};
  input.pipeline->waits_for = {{1}, {}, {1}};
  input.pipeline->holders = {HolderOf(1, absl::Minutes(5))};
  input.looked_since = kNow - absl::Seconds(1);
  StallReport report = FindStall(kNow, input);
  EXPECT_FALSE(report.stalled);
  EXPECT_THAT(report.outliers, IsEmpty());
  input.looked_since = kNow - absl::Seconds(4);
  report = FindStall(kNow, input);
  EXPECT_FALSE(report.stalled);
  EXPECT_EQ(report.since, kNow - absl::Seconds(4));
  input.looked_since = kNow - kTimeout;
  EXPECT_TRUE(FindStall(kNow, input).stalled);
}

// They announce the next step once this one is done.
TEST(StallTest, TicketsOfThoseWithinAPipelinesStepAreNotMissing) {
  StallInput input = Job(3, absl::Seconds(1));
  input.pipeline.emplace();
  input.pipeline->in = {"between steps", "1F7", "2RECV_F7"};
  input.pipeline->waits_for = {{1}, {}, {1}};
  input.pipeline->holders = {HolderOf(1, absl::Seconds(5))};
  input.rounds.push_back(Waits({1, 2}, absl::Seconds(5)));
  EXPECT_THAT(FindStall(kNow, input).outliers, ElementsAre(1));
  // This one does nothing that the pipeline waits for.
  input.rounds.back().missing = {0};
  EXPECT_THAT(FindStall(kNow, input).outliers, ElementsAre(0, 1));
}

TEST(StallTest, AJobThatMovesHasNoOutliers) {
  const StallReport report = FindStall(kNow, Job(3, absl::Milliseconds(10)));
  EXPECT_FALSE(report.stalled);
  EXPECT_THAT(report.outliers, IsEmpty());
  EXPECT_THAT(report.findings, ElementsAre(HasSubstr("makes progress")));
  EXPECT_OK(report.error);
}

TEST(StallTest, AMissingRankIsAnOutlierBeforeTheTimeout) {
  StallInput input = Job(4, absl::Seconds(2));
  input.rounds.push_back(Waits({1}, absl::Milliseconds(1500)));
  input.ranks[1].activity = "loads data";
  const StallReport report = FindStall(kNow, input);
  EXPECT_FALSE(report.stalled);
  EXPECT_THAT(report.outliers, ElementsAre(1));
  EXPECT_THAT(
      report.findings,
      ElementsAre("step 8 of stream \"train\": rank 1 has not announced it; "
                  "the others have waited for 1.5s",
                  "rank 1: its last ticket was of step 7 of stream \"train\", "
                  "2s ago; 32 micro-batches begun, last progress 2s ago; it "
                  "reports: loads data"));
}

TEST(StallTest, RanksAreNamedWithTheirPlaces) {
  StallInput input = Job(4, absl::Seconds(2));
  input.place_of = [](int rank) {
    return absl::StrCat("dp 0, shard ", rank, "; host-a/", rank);
  };
  input.rounds.push_back(Waits({1}, absl::Milliseconds(1500)));
  EXPECT_THAT(
      FindStall(kNow, input).findings,
      ElementsAre(HasSubstr("rank 1 (dp 0, shard 1; host-a/1) has not "
                            "announced it"),
                  HasSubstr("rank 1 (dp 0, shard 1; host-a/1): its last")));
  input.ranks[2].live = false;
  input.rounds[0].missing = {1, 2};
  EXPECT_THAT(
      FindStall(kNow, input).findings,
      ElementsAre(HasSubstr("ranks 1, 2 have not announced it"),
                  HasSubstr("rank 1 (dp 0, shard 1; host-a/1): its last"),
                  "rank 2 (dp 0, shard 2; host-a/2) has left the job"));
}

TEST(StallTest, ShortWaitsHaveNoOutliers) {
  StallInput input = Job(4, absl::Milliseconds(5));
  input.rounds.push_back(Waits({1}, absl::Milliseconds(4)));
  const StallReport report = FindStall(kNow, input);
  EXPECT_THAT(report.outliers, IsEmpty());
  EXPECT_THAT(report.findings, ElementsAre(HasSubstr("makes progress")));
}

TEST(StallTest, AfterTheTimeoutItIsAStallWithTheRoundInTheError) {
  StallInput input = Job(4, kTimeout);
  input.rounds.push_back(Waits({1, 3}, kTimeout));
  input.rounds[0].voting = true;
  const StallReport report = FindStall(kNow, input);
  EXPECT_TRUE(report.stalled);
  EXPECT_THAT(report.error,
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("ranks 1, 3 have not voted on it; the others "
                                 "have waited for 10s")));
  const v1::ErrorDetail detail = DetailOf(report.error);
  EXPECT_EQ(detail.schedule_mismatch().stream(), "train");
  EXPECT_EQ(detail.schedule_mismatch().round(), 8);
  EXPECT_THAT(detail.schedule_mismatch().odd_ranks(), ElementsAre(1, 3));
}

TEST(StallTest, TheRoundThatWaitsLongestComesFirst) {
  StallInput input = Job(3, absl::Seconds(1));
  input.rounds.push_back(Waits({1}, absl::Seconds(1)));
  input.rounds.push_back(Waits({2}, absl::Seconds(5)));
  input.rounds[1].stream = "generator";
  const StallReport report = FindStall(kNow, input);
  EXPECT_THAT(report.findings[0], HasSubstr("\"generator\": rank 2"));
  EXPECT_THAT(report.outliers, ElementsAre(1, 2));
}

TEST(StallTest, ACollectiveThatHangsIsAStallAndTheOneBehindAnOutlier) {
  StallInput input = Job(4, kTimeout);
  input.ranks[2].collective_sequence = 79;
  const StallReport report = FindStall(kNow, input);
  EXPECT_TRUE(report.stalled);
  EXPECT_THAT(report.outliers, ElementsAre(2));
  EXPECT_THAT(report.findings[0],
              AllOf(HasSubstr("no rank has made progress for 10s"),
                    HasSubstr("all had agreed")));
  EXPECT_THAT(report.findings,
              Contains("collectives started: 79 on rank 2, 80 on ranks 0, 1, "
                       "3"));
  EXPECT_THAT(report.error, StatusIs(absl::StatusCode::kAborted,
                                     HasSubstr("look at rank 2")));
}

TEST(StallTest, OfTwoTheOneBehindIsTheOutlier) {
  for (int behind : {0, 1}) {
    StallInput input = Job(2, kTimeout);
    input.ranks[static_cast<size_t>(behind)].bucket = 1;
    EXPECT_THAT(FindStall(kNow, input).outliers, ElementsAre(behind));
  }
}

TEST(StallTest, TheOneAheadOfTheMajorityIsTheOutlier) {
  StallInput input = Job(3, kTimeout);
  input.ranks[1].rounds = 9;
  input.ranks[2].collective_sequence = 0;
  const StallReport report = FindStall(kNow, input);
  EXPECT_THAT(report.outliers, ElementsAre(1))
      << "rounds come before collectives";
}

TEST(StallTest, WhereAllAreAtTheSamePlaceAllAreNamed) {
  const StallReport report = FindStall(kNow, Job(3, kTimeout));
  EXPECT_TRUE(report.stalled);
  EXPECT_THAT(report.outliers, ElementsAre(0, 1, 2));
  EXPECT_THAT(report.findings, Contains(HasSubstr("at the same point")));
}

TEST(StallTest, OneRankThatMovesIsProgress) {
  StallInput input = Job(3, kTimeout * 5);
  input.ranks[1].progressed = kNow - absl::Seconds(1);
  const StallReport report = FindStall(kNow, input);
  EXPECT_FALSE(report.stalled);
}

TEST(StallTest, BeforeTheTimeoutIdlenessIsReportedAndIsNoStall) {
  StallInput input = Job(3, kTimeout / 2);
  const StallReport report = FindStall(kNow, input);
  EXPECT_FALSE(report.stalled);
  EXPECT_THAT(report.outliers, IsEmpty());
  EXPECT_THAT(report.findings[0],
              HasSubstr("no rank has made progress for 5s"));
}

TEST(StallTest, BeforeTheFirstTicketAndAtTheEndNothingIsOwed) {
  StallInput starting = Job(3, kTimeout * 5);
  for (RankActivity& it : starting.ranks) it.ticket.reset();
  EXPECT_FALSE(FindStall(kNow, starting).stalled);

  StallInput leaving = Job(3, kTimeout * 5);
  leaving.ranks[0].live = false;
  EXPECT_FALSE(FindStall(kNow, leaving).stalled);

  StallInput stopped = Job(3, kTimeout * 5);
  stopped.stopped = true;
  EXPECT_FALSE(FindStall(kNow, stopped).stalled);
}

TEST(StallTest, TheExchangeThatComesBeforeAStopIsStillExpected) {
  StallInput input = Job(3, kTimeout);
  input.stopped = true;
  input.ranks[2].collective_sequence = 79;
  const StallReport report = FindStall(kNow, input);
  EXPECT_TRUE(report.stalled);
  EXPECT_THAT(report.outliers, ElementsAre(2));
}

TEST(StallTest, AMissingRankIsAStallAlsoWhereOthersHaveLeft) {
  StallInput input = Job(3, kTimeout * 5);
  input.ranks[0].live = false;
  input.rounds.push_back(Waits({0}, kTimeout));
  const StallReport report = FindStall(kNow, input);
  EXPECT_TRUE(report.stalled);
  EXPECT_THAT(report.findings[1], "rank 0 has left the job");
}

TEST(StallTest, SilenceIsMentioned) {
  StallInput input = Job(3, absl::Milliseconds(10));
  input.ranks[1].last_contact = kNow - absl::Seconds(7);
  const StallReport report = FindStall(kNow, input);
  EXPECT_THAT(report.findings, ElementsAre("rank 1 has sent nothing for 7s"));
}

TEST(StallTest, AThousandMissingRanksMakeAShortReport) {
  StallInput input = Job(1000, kTimeout);
  OpenRound round = Waits({}, kTimeout);
  for (int rank = 0; rank < 1000; rank += 2) round.missing.push_back(rank);
  input.rounds.push_back(round);
  const StallReport report = FindStall(kNow, input);
  EXPECT_THAT(report.findings, SizeIs(20));
  EXPECT_LT(report.error.message().size(), 2048u);
  EXPECT_THAT(report.outliers, SizeIs(500));
}

}  // namespace
}  // namespace coxswain::schedule::stall_test
