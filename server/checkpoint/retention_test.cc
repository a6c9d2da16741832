#include "server/checkpoint/retention.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Named by their steps, the last one made first.
std::vector<CheckpointRecord> Of(const std::vector<int64_t>& steps,
                                 int64_t generation = 1) {
  std::vector<CheckpointRecord> checkpoints;
  for (const int64_t step : steps) {
    checkpoints.emplace_back();
    checkpoints.back().id = absl::StrCat("s", step);
    checkpoints.back().step = step;
    checkpoints.back().generation = Generation(generation);
  }
  return checkpoints;
}

RetentionRules Rules(int keep_last, int64_t keep_every = 0) {
  RetentionRules rules;
  rules.keep_last = keep_last;
  rules.keep_every = keep_every;
  return rules;
}

TEST(RetentionTest, WithoutARuleAllStay) {
  EXPECT_THAT(Retained(Of({3, 2, 1}), Rules(0)), ElementsAre("s1", "s2", "s3"));
  EXPECT_TRUE(Retained({}, Rules(0)).empty());
  EXPECT_TRUE(Retained({}, Rules(3, 3)).empty());
}

TEST(RetentionTest, TheLastOnesStayInTheOrderInWhichTheyWereMade) {
  EXPECT_THAT(Retained(Of({3, 2, 1}), Rules(2)), ElementsAre("s2", "s3"));
  EXPECT_THAT(Retained(Of({3, 2, 1}), Rules(9)), ElementsAre("s1", "s2", "s3"));
  // A run from scratch begins again at step 0: its own are the last ones made.
  EXPECT_THAT(Retained(Of({1, 0, 900, 800}), Rules(2)),
              ElementsAre("s0", "s1"));
}

TEST(RetentionTest, MultiplesStayBesideThem) {
  EXPECT_THAT(Retained(Of({1050, 1000, 950, 900, 500, 450, 0}), Rules(2, 500)),
              ElementsAre("s0", "s1000", "s1050", "s500"));
}

TEST(RetentionTest, TheFirstStaysByAnyRules) {
  EXPECT_THAT(Retained(Of({7, 6, 5}), Rules(0, 5)), ElementsAre("s5", "s7"));
}

TEST(RetentionTest, ImportedOnesStayAndDoNotCount) {
  auto checkpoints = Of({40, 30, 20});
  const auto imported = Of({99, 98, 97}, /*generation=*/0);
  checkpoints.insert(checkpoints.end(), imported.begin(), imported.end());
  EXPECT_THAT(Retained(checkpoints, Rules(2)),
              ElementsAre("s30", "s40", "s97", "s98", "s99"));
}

TEST(RetentionTest, NegativeRulesAreRefused) {
  EXPECT_OK(Rules(0).Validate());
  EXPECT_OK(Rules(3, 100).Validate());
  EXPECT_THAT(Rules(-1).Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("keep_last must be 0 (no rule) or more, not "
                                 "-1")));
  EXPECT_THAT(
      Rules(0, -5).Validate(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("keep_every")));
}

}  // namespace
}  // namespace coxswain::server
