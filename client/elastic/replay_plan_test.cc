#include "client/elastic/replay_plan.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::replay_plan_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kLineage = 7;
constexpr int64_t kGood = 100;
constexpr int64_t kBad = 200;

// Ranks that have trained in generation 4 up to step 12, and hold these bits.
struct Ranks {
  explicit Ranks(const std::vector<int64_t>& tensors) {
    for (const int64_t bits : tensors) {
      RankFacts one;
      one.has_state = 1;
      one.lineage = kLineage;
      one.recovered = 4;
      one.trained = 4;
      one.progress = 12;
      one.step = 12;
      one.tensors = bits;
      facts.push_back(one);
      ReplayFacts replay;
      replay.known = CopyOf(8, 80);
      replay.known.confirmed = 1;
      replay.waiting = CopyOf(12, bits);
      replays.push_back(replay);
    }
  }

  static CopyFacts CopyOf(int64_t step, int64_t tensors) {
    CopyFacts copy;
    copy.intact = 1;
    copy.version = {kLineage, 4, step};
    copy.step = step;
    copy.tensors = tensors;
    return copy;
  }

  absl::StatusOr<ReplayPlan> Plan() const {
    return PlanReplay(facts, RanksInDispute(facts), replays, 3,
                      absl::DataLossError("they differ"));
  }

  std::vector<RankFacts> facts;
  std::vector<ReplayFacts> replays;
};

TEST(ReplayPlanTest, AllGoBackToTheLastStepThatWasConfirmed) {
  const Ranks ranks({kGood, kBad});
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan, ranks.Plan());
  EXPECT_EQ(plan.dispute.from_step, 8);
  EXPECT_EQ(plan.dispute.step, 12);
  EXPECT_EQ(plan.dispute.replays, 1);
  EXPECT_THAT(plan.dispute.ranks, ElementsAre(0, 1));
  EXPECT_THAT(plan.goes_back, ElementsAre(true, true));
  EXPECT_THAT(plan.drops, ElementsAre(false, false));
  EXPECT_THAT(plan.warning,
              AllOf(HasSubstr("ranks 0, 1 had different bits after the same "
                              "step 12"),
                    HasSubstr("go back to step 8")));
}

TEST(ReplayPlanTest, AMajorityIsNoDispute) {
  EXPECT_THAT(RanksInDispute(Ranks({kGood, kBad, kGood}).facts), IsEmpty());
  EXPECT_THAT(RanksInDispute(Ranks({kGood, kGood}).facts), IsEmpty());
  EXPECT_THAT(RanksInDispute(Ranks({kGood, kBad, 3}).facts),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(RanksInDispute(Ranks({kGood, kBad, kBad, kGood}).facts),
              ElementsAre(0, 1, 2, 3));
}

TEST(ReplayPlanTest, ARankWhoseCopyIsDamagedTakesOverAnothers) {
  Ranks ranks({kGood, kBad});
  ranks.replays[0].known.intact = 0;
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan, ranks.Plan());
  EXPECT_EQ(plan.dispute.from_step, 8);
  EXPECT_THAT(plan.goes_back, ElementsAre(false, true));
  EXPECT_THAT(plan.drops, ElementsAre(true, false));
}

TEST(ReplayPlanTest, WithoutACopyTheJobEndsAsItDid) {
  Ranks ranks({kGood, kBad});
  for (ReplayFacts& replay : ranks.replays) replay.known.intact = 0;
  EXPECT_THAT(ranks.Plan(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("they differ")));
}

TEST(ReplayPlanTest, CopiesThatDifferAreOfNoUse) {
  Ranks ranks({kGood, kBad});
  ranks.replays[1].known.tensors ^= 1;
  EXPECT_THAT(ranks.Plan(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("they differ")));
}

TEST(ReplayPlanTest, CopiesOfOtherLineagesAreOfNoUse) {
  Ranks ranks({kGood, kBad});
  for (ReplayFacts& replay : ranks.replays) ++replay.known.version.lineage;
  EXPECT_THAT(ranks.Plan(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("they differ")));
}

// The decision on step 10 has reached rank 1 alone.
TEST(ReplayPlanTest, ACopyThatOneRankKnowsIsConfirmedForAll) {
  Ranks ranks({kGood, kBad});
  ranks.replays[0].waiting = Ranks::CopyOf(10, 90);
  ranks.replays[1].known = Ranks::CopyOf(10, 90);
  ranks.replays[1].known.confirmed = 1;
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan, ranks.Plan());
  EXPECT_EQ(plan.dispute.from_step, 10);
  EXPECT_THAT(plan.goes_back, ElementsAre(true, true));
}

// Rank 1's bit has changed after it had copied the state.
TEST(ReplayPlanTest, ACopyThatNoRankKnowsCountsWhereAllHaveTheSame) {
  Ranks ranks({kGood, kBad});
  ranks.replays[1].waiting = Ranks::CopyOf(12, kGood);
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan, ranks.Plan());
  EXPECT_EQ(plan.dispute.from_step, 12);

  ranks.replays[1].waiting.intact = 0;
  ASSERT_OK_AND_ASSIGN(const ReplayPlan alone, ranks.Plan());
  EXPECT_EQ(alone.dispute.from_step, 8);
}

// Tensors are what is compared of a copy.
TEST(ReplayPlanTest, WhereTheRestDiffersOnlyConfirmedCopiesCount) {
  Ranks ranks({kGood, kGood});
  ranks.facts[1].digest = 1;
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan, ranks.Plan());
  EXPECT_EQ(plan.dispute.from_step, 8);
}

TEST(ReplayPlanTest, ARankThatIsBehindGoesBackToo) {
  Ranks ranks({kGood, kBad, kGood});
  ranks.facts[2].progress = ranks.facts[2].step = 11;
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan, ranks.Plan());
  EXPECT_THAT(plan.dispute.ranks, ElementsAre(0, 1));
  EXPECT_THAT(plan.goes_back, ElementsAre(true, true, true));

  ranks.replays[2] = ReplayFacts();
  ASSERT_OK_AND_ASSIGN(const ReplayPlan without, ranks.Plan());
  EXPECT_THAT(without.goes_back, ElementsAre(true, true, false));
  EXPECT_THAT(without.drops, ElementsAre(false, false, true));
}

// Ranks that had kGood and kBad at step 12, and have come there again.
Ranks Again(int64_t first, int64_t second) {
  Ranks ranks({first, second});
  for (size_t rank = 0; rank < 2; ++rank) {
    ranks.facts[rank].trained = ranks.facts[rank].recovered = 5;
    ReplayFacts& replay = ranks.replays[rank];
    replay.generation = 5;
    replay.progress = 12;
    replay.from_step = 8;
    replay.had.tensors = rank == 0 ? kGood : kBad;
    replay.replays = 1;
  }
  return ranks;
}

TEST(ReplayPlanTest, WhatARankHasAgainAfterAReplayIsReported) {
  EXPECT_THAT(Again(kGood, kBad).Plan(),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("ranks 0, 1 hold different bits after "
                                       "the same step 12"),
                             HasSubstr("the steps from 8 on were replayed"),
                             HasSubstr("each had the bits again"),
                             HasSubstr("a checkpoint of step 8 or before"))));
  EXPECT_THAT(Again(kGood, 3).Plan(),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("rank 0 had the same bits again, and rank 1 "
                                 "others")));
  EXPECT_THAT(Again(3, 4).Plan(),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("do not give the same bits twice")));
}

TEST(ReplayPlanTest, AnotherStepThanTheOneThatWasReplayedIsReplayed) {
  Ranks ranks = Again(kGood, kBad);
  for (RankFacts& facts : ranks.facts) facts.progress = facts.step = 11;
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan, ranks.Plan());
  EXPECT_EQ(plan.dispute.replays, 2);
  for (ReplayFacts& replay : ranks.replays) replay.replays = 3;
  EXPECT_THAT(ranks.Plan(), StatusIs(absl::StatusCode::kDataLoss,
                                     HasSubstr("after 3 replays in a row")));
}

TEST(ReplayPlanTest, TheRankWhoseBitsAreOthersWasWrong) {
  ReplayDispute dispute;
  dispute.ranks = {0, 1};
  dispute.had = {{kGood, 1}, {kBad, 1}};
  // What the digest depends on besides the steps is another generation.
  dispute.now = StateBits{kGood, 2};
  EXPECT_THAT(RanksThatWereWrong(dispute), ElementsAre(1));
  dispute.now = StateBits{kBad, 2};
  EXPECT_THAT(RanksThatWereWrong(dispute), ElementsAre(0));
  dispute.now = StateBits{3, 1};
  EXPECT_THAT(RanksThatWereWrong(dispute), IsEmpty());
  dispute.had = {{kGood, 1}, {kGood, 2}};
  dispute.now = StateBits{kGood, 2};
  EXPECT_THAT(RanksThatWereWrong(dispute), ElementsAre(0));
}

}  // namespace
}  // namespace coxswain::replay_plan_test
