#include "server/schedule/position_record.h"

#include <string>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "proto/state.pb.h"
#include "schedule/bounds.h"
#include "server/state/record.h"

namespace coxswain::server {
namespace {

using testing::_;
using testing::HasSubstr;

schedule::Decision Full() {
  schedule::Decision decision;
  decision.round = 41;
  decision.step = 40;
  decision.next_step = 41;
  decision.commit = false;
  decision.reason = "rank 1: loss is nan\nround 7\n";
  decision.stop = "a \xff \\ byte";
  decision.regroup = "rank 3 drains: SIGTERM";
  decision.checkpoint = "checkpoint_every=41";
  decision.plan.emplace();
  decision.plan->version = 3;
  decision.plan->hook = "bf16";
  decision.plan->at_step = 41;
  decision.plan->terms.max_steps = 99;
  decision.sums = schedule::GradientSums{0.25, 2};
  return decision;
}

TEST(PositionRecordTest, KeepsWhatTheNextRoundsNeed) {
  const schedule::Decision full = Full();
  ASSERT_OK_AND_ASSIGN(const schedule::Decision read,
                       DecodePosition(EncodePosition(full)));
  EXPECT_EQ(read.round, 41);
  EXPECT_EQ(read.step, 40);
  EXPECT_EQ(read.next_step, 41);
  EXPECT_FALSE(read.commit);
  EXPECT_EQ(read.reason, full.reason);
  EXPECT_EQ(read.stop, full.stop);
  EXPECT_EQ(read.regroup, full.regroup);
  EXPECT_EQ(read.checkpoint, full.checkpoint);
  ASSERT_TRUE(read.plan.has_value());
  EXPECT_EQ(read.plan->version, 3);
  EXPECT_EQ(read.plan->at_step, 41);
  EXPECT_TRUE(read.plan->SameSettings(*full.plan));
  ASSERT_TRUE(read.sums.has_value());
  EXPECT_EQ(read.sums->sum_of_squares, 0.25);
  EXPECT_EQ(read.sums->non_finite, 2);
}

// What is accepted can be stored and loaded.
TEST(PositionRecordTest, APlanMayHaveTheLongestHook) {
  schedule::Decision full = Full();
  full.plan->hook = std::string(schedule::kMaxHookBytes, '\n');
  ASSERT_OK_AND_ASSIGN(const schedule::Decision read,
                       DecodePosition(EncodePosition(full)));
  ASSERT_TRUE(read.plan.has_value());
  EXPECT_EQ(read.plan->hook, full.plan->hook);
}

TEST(PositionRecordTest, WhatIsNotKnownStaysUnknown) {
  ASSERT_OK_AND_ASSIGN(const schedule::Decision read,
                       DecodePosition(EncodePosition(schedule::Decision())));
  EXPECT_TRUE(read.commit);
  EXPECT_FALSE(read.next_step.has_value());
  EXPECT_FALSE(read.plan.has_value());
  EXPECT_FALSE(read.sums.has_value());
  EXPECT_EQ(read.checkpoint, "");
}

TEST(PositionRecordTest, LongTextsOfEarlierVersionsAreCut) {
  schedule::Decision old = Full();
  old.regroup = std::string(20'000, 'x');
  ASSERT_OK_AND_ASSIGN(const schedule::Decision read,
                       DecodePosition(EncodePosition(old)));
  EXPECT_EQ(read.regroup.size(), schedule::kMaxDecisionTextBytes);
}

TEST(PositionRecordTest, WhatIsCutOffIsRefused) {
  const std::string record = EncodePosition(Full());
  for (size_t size = 0; size < record.size(); ++size) {
    EXPECT_THAT(DecodePosition(record.substr(0, size)),
                StatusIs(absl::StatusCode::kInvalidArgument, _))
        << size;
  }
}

TEST(PositionRecordTest, WhatIsDamagedIsRefused) {
  EXPECT_THAT(DecodePosition("nonsense"),
              StatusIs(absl::StatusCode::kInvalidArgument, _));
  schedule::Decision early = Full();
  early.round = -1;
  EXPECT_THAT(DecodePosition(EncodePosition(early)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("position.round")));
  state::v1::Position position;
  ASSERT_TRUE(ParseRecord(EncodePosition(Full()), &position));
  position.set_outcome(static_cast<state::v1::Position::Outcome>(3));
  EXPECT_THAT(DecodePosition(SerializeRecord(position)),
              StatusIs(absl::StatusCode::kInvalidArgument, _));
}

}  // namespace
}  // namespace coxswain::server
