#include "client/session/event_queue.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using ::testing::HasSubstr;
using Kind = SessionEvent::Kind;

SessionEvent Of(Kind kind, std::string text) {
  SessionEvent event;
  event.kind = kind;
  event.text = std::move(text);
  return event;
}

class EventQueueTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  EventQueue queue_{7, &clock_};
};

TEST_F(EventQueueTest, EventsComeInOrderWithTheirTime) {
  queue_.Put(Of(Kind::kJoined, "first"));
  clock_.Advance(absl::Seconds(3));
  queue_.Put(Of(Kind::kWarning, "second"));
  ASSERT_OK_AND_ASSIGN(const auto first, queue_.Next(absl::ZeroDuration()));
  ASSERT_OK_AND_ASSIGN(const auto second, queue_.Next(absl::ZeroDuration()));
  EXPECT_EQ(first.text, "first");
  EXPECT_EQ(first.generation, 7);
  EXPECT_EQ(second.text, "second");
  EXPECT_EQ(second.at - first.at, absl::Seconds(3));
}

TEST_F(EventQueueTest, WithoutAnEventTheTimeRunsOut) {
  EXPECT_THAT(queue_.Next(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("1ms")));
}

TEST_F(EventQueueTest, AReaderThatWaitsIsWoken) {
  std::thread writer([this]() { queue_.Put(Of(Kind::kWarning, "now")); });
  const auto event = queue_.Next(absl::Seconds(20));
  writer.join();
  ASSERT_OK(event);
  EXPECT_EQ(event->text, "now");
}

TEST_F(EventQueueTest, ASlowReaderLosesTheOldestAndLearnsHowMany) {
  for (size_t i = 0; i < EventQueue::kMaxQueued + 3; ++i) {
    queue_.Put(Of(Kind::kWarning, absl::StrCat(i)));
  }
  EXPECT_EQ(queue_.dropped(), 3);
  ASSERT_OK_AND_ASSIGN(const auto first, queue_.Next(absl::ZeroDuration()));
  EXPECT_EQ(first.text, "3");
}

TEST_F(EventQueueTest, TheEndOfTheGenerationIsTheLastEvent) {
  queue_.Put(Of(Kind::kGenerationEnded, "rank 1 was lost"));
  queue_.Put(Of(Kind::kWarning, "late"));
  EXPECT_OK(queue_.Next(absl::ZeroDuration()));
  EXPECT_THAT(
      queue_.Next(absl::Seconds(20)),
      StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("generation 7")));
}

TEST_F(EventQueueTest, ClosingWakesTheReaderAndKeepsWhatWaits) {
  queue_.Put(Of(Kind::kWarning, "unread"));
  queue_.Close();
  queue_.Put(Of(Kind::kWarning, "late"));
  ASSERT_OK_AND_ASSIGN(const auto event, queue_.Next(absl::Seconds(20)));
  EXPECT_EQ(event.text, "unread");
  EXPECT_THAT(queue_.Next(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kOutOfRange, ::testing::_));
}

TEST(SessionEventKindTest, HasAName) {
  EXPECT_EQ(ToString(Kind::kReattached), "reattached");
  EXPECT_EQ(ToString(Kind::kGenerationEnded), "generation_ended");
}

}  // namespace
}  // namespace coxswain
