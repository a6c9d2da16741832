// A Leave while another thread joins the next generation.

#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "client/session/session.h"
#include "client/session/session_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::session_rejoin_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class SessionRejoinTest : public SessionTest {
 protected:
  SessionRejoinTest() {
    fake_->Answer<v1::LeaveRequest, v1::LeaveResponse>(
        "Rendezvous/Leave",
        [this](const v1::LeaveRequest& request, const CallOptions&) {
          if (request.rejoin()) {
            makes_way_.Put(true);
            if (holds_rejoin_) {
              EXPECT_TRUE(leave_.Wait());
            }
          } else {
            leave_.Put(request);
          }
          MutexLock lock(&mutex_);
          leaves_.push_back(request);
          return v1::LeaveResponse();
        });
  }

  // Another thread rejoins, and its Join waits until the coordinator has this
  // worker's Leave, which then answers it so.
  void AnswerOnceItHasLeft(const absl::Status& answer) {
    AnswerJoin([this, answer](const v1::JoinRequest& request) {
      if (request.after_generation() == 0) return absl::OkStatus();
      asks_.Put(true);
      EXPECT_TRUE(leave_.Wait());
      return answer;
    });
  }
  // The generation ends.
  void Abort(Session& session) {
    const auto ended = std::make_shared<Mailbox<bool>>();
    session.OnAbort([ended](const absl::Status&) { ended->Put(true); });
    fake_->AttachmentNumber(0)->Event(AbortEvent());
    EXPECT_TRUE(ended->Wait());
  }
  // Leaves while another thread is in Rejoin, once `reached` is there. Returns
  // what that returns.
  static absl::Status LeaveWithin(Session& session, Mailbox<bool>& reached) {
    Mailbox<absl::Status> rejoined;
    std::thread other([&] { rejoined.Put(session.Rejoin().status()); });
    EXPECT_TRUE(reached.Wait());
    EXPECT_OK(session.Leave("it drains"));
    other.join();
    return rejoined.Take();
  }
  // Returns of which generations this worker has left for good.
  std::vector<int64_t> Left() {
    MutexLock lock(&mutex_);
    std::vector<int64_t> generations;
    for (const v1::LeaveRequest& leave : leaves_) {
      if (leave.rejoin()) continue;
      EXPECT_EQ(leave.reason(), "it drains");
      EXPECT_FALSE(leave.failed());
      generations.push_back(leave.fence().generation());
    }
    return generations;
  }
  static auto HasLeft() {
    return StatusIs(absl::StatusCode::kCancelled, HasSubstr("it drains"));
  }

  bool holds_rejoin_ = false;
  Mailbox<bool> asks_;
  Mailbox<bool> makes_way_;

 private:
  Mutex mutex_;
  std::vector<v1::LeaveRequest> leaves_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(SessionRejoinTest, ALeaveEndsTheRejoinOfAnotherThread) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Abort(*session);
  AnswerOnceItHasLeft(absl::CancelledError("rank 0 has left for good"));
  const absl::Status rejoined = LeaveWithin(*session, asks_);
  EXPECT_THAT(rejoined, HasLeft());
  EXPECT_FALSE(IsJobFinished(rejoined));
  EXPECT_THAT(Left(), ElementsAre(7));
  EXPECT_THAT(session->Rejoin(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("for good")));
}

TEST_F(SessionRejoinTest, WhatItHasEnteredByThenIsLeftToo) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Abort(*session);
  joined_.set_generation(8);
  AnswerOnceItHasLeft(absl::OkStatus());
  EXPECT_THAT(LeaveWithin(*session, asks_), HasLeft());
  EXPECT_THAT(Left(), ElementsAre(7, 8));
}

TEST_F(SessionRejoinTest, WhatHasEndedBeforeItBeganIsLeftToo) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Abort(*session);
  joined_.set_generation(8);
  fake_->OnAttach([](FakeAttachment& stream) { stream.Event(AbortEvent()); });
  AnswerOnceItHasLeft(absl::OkStatus());
  EXPECT_THAT(LeaveWithin(*session, asks_), HasLeft());
  EXPECT_THAT(Left(), ElementsAre(7, 8));
}

TEST_F(SessionRejoinTest, AJoinThatIsNotAnsweredIsCancelled) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Abort(*session);
  fake_->Answer<v1::JoinRequest, v1::JoinResponse>(
      "Rendezvous/Join",
      [this](const v1::JoinRequest&,
             const CallOptions& call) -> absl::StatusOr<v1::JoinResponse> {
        asks_.Put(true);
        EXPECT_TRUE(call.cancel->WaitFor(absl::Seconds(20)));
        return call.cancel->status();
      });
  EXPECT_THAT(LeaveWithin(*session, asks_), HasLeft());
  EXPECT_THAT(Left(), ElementsAre(7));
}

TEST_F(SessionRejoinTest, OneThatIsLeftWhileItMakesWayDoesNotJoin) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  holds_rejoin_ = true;
  EXPECT_THAT(LeaveWithin(*session, makes_way_), HasLeft());
  EXPECT_THAT(Left(), ElementsAre(7));
  EXPECT_EQ(joins_, 1);
}

TEST_F(SessionRejoinTest, OneThreadRejoins) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Abort(*session);
  joined_.set_generation(8);
  Mailbox<bool> refused;
  AnswerJoin([&](const v1::JoinRequest&) {
    asks_.Put(true);
    EXPECT_TRUE(refused.Wait());
    return absl::OkStatus();
  });
  std::unique_ptr<Session> next;
  std::thread other([&] {
    auto joined = session->Rejoin();
    EXPECT_OK(joined);
    if (joined.ok()) next = *std::move(joined);
  });
  EXPECT_TRUE(asks_.Wait());
  EXPECT_THAT(session->Rejoin(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("another thread")));
  refused.Put(true);
  other.join();
  ASSERT_NE(next, nullptr);
  // It is the next session that this worker leaves by now.
  EXPECT_OK(session->Leave("done"));
  EXPECT_THAT(Left(), SizeIs(0));
  EXPECT_OK(next->Leave("it drains"));
  EXPECT_THAT(Left(), ElementsAre(8));
}

}  // namespace
}  // namespace coxswain::session_rejoin_test
