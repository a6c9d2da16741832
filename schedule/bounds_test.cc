#include "schedule/bounds.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace coxswain::schedule {
namespace {

using testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

Plan MakePlan() {
  Plan plan;
  plan.version = 1;
  plan.hook = "allreduce";
  return plan;
}

TEST(BoundsTest, TheStepAfterAnAcceptedOneIsAStepOfAPlan) {
  Ticket ticket;
  ticket.round = ticket.step = kMaxRound;
  EXPECT_OK(CheckTicket(ticket));
  Plan plan = MakePlan();
  plan.at_step = ticket.step + 1;
  EXPECT_OK(CheckPlan(plan));
  ++plan.at_step;
  EXPECT_THAT(CheckPlan(plan), StatusIs(kInvalid, HasSubstr("at_step")));
  ++ticket.step;
  EXPECT_THAT(CheckTicket(ticket),
              StatusIs(kInvalid, HasSubstr("ticket.step must be 0 to")));
  Vote vote;
  vote.round = kMaxRound + 1;
  EXPECT_THAT(CheckVote(vote), StatusIs(kInvalid, HasSubstr("vote.round")));
}

TEST(BoundsTest, EachNumberOfAPlanHasBounds) {
  const auto refused = [](auto change, const std::string& field) {
    Plan plan = MakePlan();
    change(&plan);
    EXPECT_THAT(CheckPlan(plan), StatusIs(kInvalid, HasSubstr(field)));
    Decision last;
    last.plan = plan;
    EXPECT_FALSE(CheckPosition(last).ok()) << field;
  };
  for (const int64_t number : {int64_t{-7}, kMaxStep + 1}) {
    refused([=](Plan* plan) { plan->version = number; }, "version");
    refused([=](Plan* plan) { plan->global_micro_batches = number; },
            "global_micro_batches");
    refused([=](Plan* plan) { plan->at_step = number; }, "at_step");
  }
  refused([](Plan* plan) { plan->accumulation_steps = -1; },
          "accumulation_steps");
  refused([](Plan* plan) { plan->compression_start_step = -2; },
          "compression_start_step");
  refused([](Plan* plan) { plan->hook = std::string(kMaxHookBytes + 1, 'x'); },
          "hook");
}

TEST(BoundsTest, EachNumberOfAPositionHasBounds) {
  const auto refused = [](auto change, const std::string& field) {
    Decision last;
    last.plan = MakePlan();
    EXPECT_OK(CheckPosition(last));
    change(&last);
    EXPECT_THAT(CheckPosition(last), StatusIs(kInvalid, HasSubstr(field)));
  };
  for (const int64_t number : {int64_t{-1}, kMaxStep + 1}) {
    refused([=](Decision* last) { last->round = number; }, "position.round");
    refused([=](Decision* last) { last->step = number; }, "position.step");
    refused([=](Decision* last) { last->next_step = number; },
            "position.next_step");
  }
  refused([](Decision* last) { last->plan->version = 0; },
          "position.plan.version must be from 1");
  refused(
      [](Decision* last) {
        last->stop = std::string(kMaxDecisionTextBytes + 1, 'x');
      },
      "a text of a position");
}

TEST(BoundsTest, TextsAreCutToWhatIsAllowedAndStaySoWhenTheyAreCutAgain) {
  Decision decision;
  for (std::string* text : {&decision.reason, &decision.stop, &decision.regroup,
                            &decision.checkpoint}) {
    // A letter of two bytes lies across the bound.
    *text = absl::StrCat(std::string(kMaxDecisionTextBytes - 4, 'x'),
                         "\xc3\xa9\n\xc3\xa9 and more");
  }
  EXPECT_FALSE(CheckPosition(decision).ok());
  CutTexts(&decision);
  EXPECT_OK(CheckPosition(decision));
  EXPECT_THAT(decision.stop, HasSubstr("x..."));
  Decision again = decision;
  CutTexts(&again);
  EXPECT_EQ(again.reason, decision.reason);
  EXPECT_EQ(again.stop, decision.stop);
  EXPECT_EQ(again.regroup, decision.regroup);
  EXPECT_EQ(again.checkpoint, decision.checkpoint);
}

TEST(BoundsTest, AStreamHasANameOfALimitedAlphabet) {
  for (const std::string& name :
       {std::string("train"), std::string("a.B_c-9"), std::string(64, 'x')}) {
    EXPECT_OK(CheckStreamName(name));
  }
  EXPECT_OK(CheckStreamName("abc", 3));
  for (const std::string& name : {std::string(), std::string("no name"),
                                  std::string("a/b"), std::string(65, 'x')}) {
    EXPECT_THAT(CheckStreamName(name),
                StatusIs(kInvalid, HasSubstr("not the name of a stream")));
  }
  EXPECT_THAT(CheckStreamName("abcd", 3), StatusIs(kInvalid, HasSubstr("3")));
  const absl::Status status = CheckStreamName(std::string(100'000, '\n'));
  EXPECT_LT(status.message().size(), 200u);
}

}  // namespace
}  // namespace coxswain::schedule
