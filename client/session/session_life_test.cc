// Members that show that they live, where the plan has a stall_timeout, and
// groups that a rank has left.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/cancel_signal.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "client/session/session.h"
#include "client/session/session_test_support.h"
#include "gtest/gtest.h"
#include "transport/error_detail.h"

namespace coxswain::session_life_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// So many heartbeats show that time has passed: about as often, a member whose
// generation has ended asks to be attached.
constexpr int kBeats = 20;

class SessionLifeTest : public SessionTest {
 protected:
  SessionLifeTest() {
    (*plan_.mutable_terms())["stall_timeout"] = "1s";
    fake_->OnAttach([this](FakeAttachment& stream) { Judge(stream); });
  }

  // Before what its streams refer to.
  ~SessionLifeTest() override { fake_.reset(); }

  // The coordinator ends generation 7: from now on it refuses its streams.
  void Abort() {
    ended_ = true;
    fake_->AttachmentNumber(0)->Event(AbortEvent());
  }
  static void AwaitEnd(Session& session) {
    const auto ended = std::make_shared<Mailbox<bool>>();
    session.OnAbort([ended](const absl::Status&) { ended->Put(true); });
    EXPECT_TRUE(ended->Wait());
  }
  // Waits until streams of `asking_` have been asked for several times more.
  void AwaitAsking() {
    MutexLock lock(&mutex_);
    const int before = asked_;
    EXPECT_TRUE(changed_.WaitFor(
        &mutex_, absl::Seconds(20),
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return asked_ >= before + 3; }));
  }
  int asked() {
    MutexLock lock(&mutex_);
    return asked_;
  }
  // Waits for so many heartbeats of a session.
  void AwaitBeats(Session& session, size_t stream) {
    const auto attachment = fake_->AttachmentNumber(stream);
    ASSERT_NE(attachment, nullptr);
    for (int i = 0; i < kBeats; ++i) {
      session.ReportProgress(++step_);
      ASSERT_TRUE(attachment->WaitForRequest(
          [step = step_](const v1::AttachRequest& request) {
            return request.heartbeat().step() == step;
          }));
    }
  }
  // Returns how many streams others open while a session of generation 8 sends
  // some heartbeats.
  size_t StreamsMeanwhile() {
    joined_.set_generation(8);
    options_.incarnation = Incarnation(++others_);
    const auto session = Join();
    EXPECT_OK(session);
    if (!session.ok()) return 0;
    const size_t before = StreamOf(others_);
    AwaitBeats(**session, before);
    options_.incarnation = Incarnation(++others_);
    const auto later = Join();
    EXPECT_OK(later);
    const size_t after = StreamOf(others_);
    return after - before - 1;
  }
  // Waits until one whose generation is over is a member of generation 8. Its
  // Join is held back.
  void RejoinLate(Session& session) {
    joined_.set_generation(8);
    AnswerJoin([this](const v1::JoinRequest& request) {
      if (request.after_generation() > 0) AwaitAsking();
      return absl::OkStatus();
    });
    ASSERT_OK_AND_ASSIGN(const auto next, session.Rejoin());
    // Some may have been on their way.
    EXPECT_LE(StreamsMeanwhile(), 2u) << "it is a member";
    EXPECT_OK(next->Leave("done"));
  }

  std::atomic<bool> ended_{false};
  std::string expected_ = "none";   // the generation that runs by then
  std::atomic<int64_t> asking_{7};  // the generation whose streams count

 private:
  static bool IsOf(FakeAttachment& stream, int64_t generation) {
    return stream.Count([generation](const v1::AttachRequest& request) {
      return request.hello().fence().generation() == generation;
    }) > 0;
  }
  // Returns which stream that of this process is.
  size_t StreamOf(uint64_t incarnation) {
    for (size_t number = 0;; ++number) {
      const auto stream = fake_->AttachmentNumber(number);
      const bool found =
          stream == nullptr ||
          stream->Count([incarnation](const v1::AttachRequest& request) {
            return request.hello().fence().incarnation() == incarnation;
          }) > 0;
      if (found) return number;
    }
  }
  void Judge(FakeAttachment& stream) {
    EXPECT_TRUE(stream.WaitForRequest(
        [](const v1::AttachRequest& request) { return request.has_hello(); }));
    if (!ended_ || IsOf(stream, 8)) return stream.Attached();
    if (IsOf(stream, asking_)) {
      MutexLock lock(&mutex_);
      ++asked_;
      changed_.NotifyAll();
    }
    v1::ErrorDetail detail;
    detail.mutable_stale_fence()->set_field("generation");
    detail.mutable_stale_fence()->set_expected(expected_);
    stream.End(WithDetail(absl::FailedPreconditionError("it is over"), detail));
  }

  int64_t step_ = 0;
  uint64_t others_ = 1000;  // incarnations of other processes
  Mutex mutex_;
  CondVar changed_;
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Notes the first line of one event.
class EventLine : public LogSink {
 public:
  explicit EventLine(std::string event) : event_(std::move(event)) {
    AddLogSink(this);
  }
  ~EventLine() override { RemoveLogSink(this); }
  void OnLine(const LogLine& line) override {
    if (line.event == event_) text_.Put(FormatLogLine(LogFormat::kText, line));
  }
  std::string Take() { return text_.Take(); }
  bool Holds() { return text_.Holds(); }

 private:
  const std::string event_;
  Mailbox<std::string> text_;
};

TEST_F(SessionLifeTest, ASurvivorShowsThatItLivesUntilItLeaves) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Abort();
  // Its program has yet to notice the end.
  AwaitAsking();
  EXPECT_THAT(session->status(), StatusIs(absl::StatusCode::kAborted,
                                          HasSubstr("rank 1 on host-b")));
  EXPECT_OK(session->Leave("it drains"));
  // One may have been on its way.
  EXPECT_LE(StreamsMeanwhile(), 1u);
}

TEST_F(SessionLifeTest, WhereSilenceDoesNotCountNothingIsAsked) {
  plan_.clear_terms();
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Abort();
  AwaitEnd(*session);
  EXPECT_EQ(StreamsMeanwhile(), 0u);
  EXPECT_EQ(asked(), 0);
}

TEST_F(SessionLifeTest, OneOfManyAsksMoreRarelyThanItsHeartbeatsCame) {
  // All of them together 2,000 times a second.
  options_.fallback = false;
  joined_.set_world_size(16'000);
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Abort();
  AwaitEnd(*session);
  EXPECT_EQ(StreamsMeanwhile(), 0u);
  EXPECT_EQ(asked(), 0) << "8 s have yet to pass";
}

TEST_F(SessionLifeTest, ASurvivorShowsThatItLivesUntilItsJoinIsAnswered) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Abort();
  AwaitEnd(*session);
  RejoinLate(*session);
}

TEST_F(SessionLifeTest, OneThatMakesWayShowsThatItLivesUntilItsJoinIsAnswered) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  // By its Leave: it is a member no more.
  ended_ = true;
  RejoinLate(*session);
}

TEST_F(SessionLifeTest, OneWhoseGenerationEndsAtOnceShowsThatItLives) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Abort();
  AwaitEnd(*session);
  // This one has ended before the worker attaches.
  asking_ = 6;
  joined_.set_generation(6);
  EXPECT_FALSE(session->Rejoin().ok());
  AwaitAsking();
  RejoinLate(*session);
}

TEST_F(SessionLifeTest, OneWhoseJoinWaitsIsNotReportedForThatGeneration) {
  EventLine line("end_not_noticed");
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Abort();
  AwaitEnd(*session);
  asking_ = 6;
  joined_.set_generation(6);
  EXPECT_FALSE(session->Rejoin().ok());
  AwaitAsking();
  clock_.Advance(absl::Minutes(10));
  bool over = false;
  for (int tries = 0; tries < 50 && !over; ++tries) {
    over = StreamsMeanwhile() == 0;
  }
  EXPECT_TRUE(over);
  EXPECT_FALSE(line.Holds()) << line.Take();
}

TEST_F(SessionLifeTest, OneThatGivesUpItsJoinShowsNoMoreThatItLives) {
  options_.cancel = std::make_shared<CancelSignal>();
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Abort();
  AwaitEnd(*session);
  AnswerJoin([this](const v1::JoinRequest&) {
    AwaitAsking();
    options_.cancel->Raise(absl::CancelledError("it drains"));
    return absl::UnavailableError("connection reset");
  });
  EXPECT_THAT(session->Rejoin(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("it drains")));
  options_.cancel = nullptr;
  AnswerJoin([](const v1::JoinRequest&) { return absl::OkStatus(); });
  // One may have been on its way.
  EXPECT_LE(StreamsMeanwhile(), 1u);
}

TEST_F(SessionLifeTest, WhereALaterGenerationRunsItAsksNoMore) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  expected_ = "8";
  Abort();
  bool over = false;
  for (int tries = 0; tries < 50 && !over; ++tries) {
    over = StreamsMeanwhile() == 0;
  }
  EXPECT_TRUE(over);
  EXPECT_GE(asked(), 1);
}

TEST_F(SessionLifeTest, AProgramThatDoesNotNoticeTheEndIsReported) {
  EventLine line("end_not_noticed");
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Abort();
  AwaitAsking();
  clock_.Advance(absl::Minutes(10));
  EXPECT_THAT(line.Take(), AllOf(HasSubstr("mnist"), HasSubstr("for 10m"),
                                 HasSubstr("look where its program stands")));
  EXPECT_EQ(StreamsMeanwhile(), 0u);
}

TEST_F(SessionLifeTest, AGroupThatLacksOneThatHasLeftIsGivenTwoSeconds) {
  fake_->Answer<v1::SetRequest, v1::SetResponse>(
      "Store/Set", [this](const v1::SetRequest&, const CallOptions&) {
        waiting_.Put(true);
        return v1::SetResponse();
      });
  options_.backend = "tcp";
  options_.address = "127.0.0.1";
  peer_.set_rank(1);
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Mailbox<absl::Status> got;
  std::thread creator([&] {
    got.Put(session->CreateGroup("pair", {0, 1}).status());
  });
  EXPECT_TRUE(waiting_.Wait());
  v1::AttachEvent left;
  left.mutable_member_left()->mutable_member()->set_rank(1);
  left.mutable_member_left()->mutable_member()->set_host("host-b");
  left.mutable_member_left()->set_reason("no data");
  fake_->AttachmentNumber(0)->Event(left);
  // However many heartbeats come by then.
  AwaitBeats(*session, 0);
  clock_.Advance(absl::Milliseconds(1999));
  AwaitBeats(*session, 0);
  EXPECT_FALSE(got.Holds()) << "others may still finish with it";
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_THAT(got.Take(),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("rank 1 on host-b has left: no data")));
  creator.join();
}

}  // namespace
}  // namespace coxswain::session_life_test
