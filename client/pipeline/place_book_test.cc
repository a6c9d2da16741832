#include "client/pipeline/place_book.h"

#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::place_book_test {
namespace {

using pipeline::Action;
using pipeline::ActionKind;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr Action kForward = {2, 0, ActionKind::kForward, 0};
constexpr Action kSend = {2, 0, ActionKind::kSendForward, 0};
constexpr Action kBackward = {2, 0, ActionKind::kBackward, 0};

TEST(PlaceBookTest, APlaceIsTheActionAndHowLongItHasTaken) {
  FakeClock clock;
  PlaceBook book(&clock);
  EXPECT_EQ(book.place().step, -1);
  book.Begin(4, 77);
  book.Enter(0, kForward);
  clock.Advance(absl::Seconds(3));
  PipelinePlace place = book.place();
  EXPECT_EQ(place.step, 0);
  EXPECT_EQ(place.action, 0);
  EXPECT_EQ(place.micro_batches, 4);
  EXPECT_EQ(place.schedule, 77u);
  EXPECT_EQ(place.in_it, absl::Seconds(3));
  EXPECT_THAT(place.passes, IsEmpty());
  EXPECT_TRUE(place.Sensible());
  book.Enter(1, kSend);
  clock.Advance(absl::Seconds(1));
  book.End(2);
  clock.Advance(absl::Seconds(5));
  place = book.place();
  EXPECT_EQ(place.action, 2);
  EXPECT_EQ(place.in_it, absl::Seconds(5));
  EXPECT_THAT(place.passes, ElementsAre(StagePasses{2, 3, 0, 0, 0}));
  book.Begin(3, 77);
  EXPECT_EQ(book.place().step, 1);
  EXPECT_EQ(book.place().micro_batches, 3);
}

TEST(PlaceBookTest, AStepThatIsPassedIsAtItsEnd) {
  FakeClock clock;
  PlaceBook book(&clock);
  book.Begin(4, 77);
  book.Enter(0, kForward);
  book.End(1);
  clock.Advance(absl::Minutes(6));
  book.Pass(7, 3, 78);
  const PipelinePlace place = book.place();
  EXPECT_EQ(place.step, 1);
  EXPECT_EQ(place.action, 7);
  EXPECT_EQ(place.micro_batches, 3);
  EXPECT_EQ(place.schedule, 78u);
  EXPECT_EQ(place.in_it, absl::ZeroDuration());
}

TEST(PlaceBookTest, TimesOfPassesAreTheMediansOfTheLast) {
  FakeClock clock;
  PlaceBook book(&clock);
  book.Begin(1, 77);
  const auto pass = [&](const Action& action, int seconds) {
    book.Enter(0, action);
    clock.Advance(absl::Seconds(seconds));
  };
  for (size_t i = 0; i < PlaceBook::kKeptPasses; ++i) pass(kForward, 100);
  for (size_t i = 0; i < PlaceBook::kKeptPasses / 2 + 1; ++i) {
    pass(kForward, 2);
    pass(kBackward, 4);
  }
  // What fails is no measure.
  book.Enter(0, kBackward);
  clock.Advance(absl::Hours(1));
  book.Fail();
  book.Enter(0, kSend);
  EXPECT_THAT(book.place().passes, ElementsAre(StagePasses{2, 2, 4, 0, 0}));
}

// Backward passes of an evaluation take no time.
TEST(PlaceBookTest, PassesThatAreNotMeasuredAreLeftOut) {
  FakeClock clock;
  PlaceBook book(&clock);
  for (const bool measured : {true, false}) {
    book.Begin(1, 77, measured);
    for (const Action& action : {kForward, kBackward}) {
      for (int pass = 0; pass < (measured ? 1 : 3); ++pass) {
        book.Enter(0, action);
        clock.Advance(absl::Seconds(measured ? 2 : 0));
      }
    }
    book.End(2);
    EXPECT_THAT(book.place().passes, ElementsAre(StagePasses{2, 2, 2, 0, 0}));
  }
}

TEST(PlaceBookTest, StagesPastAsManyAsThereMayBeAreLeftOut) {
  FakeClock clock;
  PlaceBook book(&clock);
  book.Begin(1, 77);
  for (int stage = 0; stage < 40; ++stage) {
    book.Enter(stage, {stage, 0, ActionKind::kForward, 0});
    clock.Advance(absl::Seconds(1));
  }
  book.End(40);
  EXPECT_EQ(book.place().passes.size(), PipelinePlace::kMaxStages);
  EXPECT_TRUE(book.place().Sensible());
}

TEST(PlaceBookTest, ActionsAreKeptWithTheirTimesIfAskedFor) {
  FakeClock clock;
  PlaceBook book(&clock);
  const auto step = [&] {
    book.Begin(1, 77);
    for (const Action& action : {kForward, kSend, kBackward}) {
      book.Enter(0, action);
      clock.Advance(absl::Seconds(1));
    }
    book.End(3);
  };
  step();
  EXPECT_THAT(book.TakeActions(), IsEmpty());
  book.KeepActions(2);
  const absl::Time begin = clock.Now();
  step();
  const auto kept = book.TakeActions();
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[1].action, kSend);
  EXPECT_EQ(kept[1].begin, begin + absl::Seconds(1));
  EXPECT_EQ(kept[1].end, begin + absl::Seconds(2));
}

}  // namespace
}  // namespace coxswain::place_book_test
