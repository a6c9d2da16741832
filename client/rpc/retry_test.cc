#include "client/rpc/retry.h"

#include <memory>
#include <set>

#include "absl/strings/cord.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "client/rpc/retrying_stub.h"
#include "gtest/gtest.h"

namespace coxswain::retry_test {
namespace {

using ::testing::HasSubstr;

class RetryTest : public ::testing::Test {
 protected:
  RetryTest() {
    policy_.clock = &clock_;
    policy_.base = absl::Microseconds(1);
    policy_.cap = absl::Microseconds(1);
    stub_ = MakeRetryingStub(fake_, policy_);
  }

  // Each call takes a second; the first `failures` of them fail.
  void AnswerAfterFailures(int failures, const absl::Status& failure) {
    fake_->Answer<v1::SetRequest, v1::SetResponse>(
        "Store/Set",
        [this, failures, failure](
            const v1::SetRequest& request,
            const CallOptions& options) -> absl::StatusOr<v1::SetResponse> {
          clock_.Advance(absl::Seconds(1));
          timeouts_.push_back(options.timeout);
          request_ids_.insert(request.fence().request_id());
          if (++attempts_ <= failures) return failure;
          return v1::SetResponse();
        });
  }

  absl::Status Set(absl::Duration timeout, CancelSignal* cancel = nullptr,
                   bool retry = true) {
    v1::SetRequest request;
    request.mutable_fence()->set_request_id(42);
    CallOptions options;
    options.timeout = timeout;
    options.cancel = cancel;
    options.retry = retry;
    return stub_->StoreSet(request, options).status();
  }

  FakeClock clock_;
  RetryPolicy policy_;
  std::shared_ptr<FakeCoordinatorStub> fake_ =
      std::make_shared<FakeCoordinatorStub>();
  std::shared_ptr<CoordinatorStub> stub_;
  int attempts_ = 0;
  std::set<uint64_t> request_ids_;
  std::vector<absl::Duration> timeouts_;
};

TEST_F(RetryTest, RepeatsTheSameRequestWhileUnavailable) {
  AnswerAfterFailures(3, absl::UnavailableError("not there"));
  EXPECT_OK(Set(absl::Seconds(30)));
  EXPECT_EQ(attempts_, 4);
  EXPECT_EQ(request_ids_, std::set<uint64_t>{42});
}

TEST_F(RetryTest, EachAttemptGetsTheTimeThatIsLeft) {
  AnswerAfterFailures(2, absl::UnavailableError("not there"));
  EXPECT_OK(Set(absl::Seconds(30)));
  EXPECT_EQ(timeouts_,
            (std::vector<absl::Duration>{absl::Seconds(30), absl::Seconds(29),
                                         absl::Seconds(28)}));
}

TEST_F(RetryTest, ReturnsOtherErrorsAtOnce) {
  AnswerAfterFailures(3, absl::ResourceExhaustedError("too many keys"));
  EXPECT_THAT(Set(absl::Seconds(30)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("too many keys")));
  EXPECT_EQ(attempts_, 1);
}

TEST_F(RetryTest, EndsAtTheOverallDeadline) {
  AnswerAfterFailures(1000, absl::UnavailableError("not there"));
  EXPECT_THAT(Set(absl::Seconds(5)),
              StatusIs(absl::StatusCode::kUnavailable,
                       "not there (Store/Set at 127.0.0.1:4711, 5 attempts "
                       "within 5s)"));
  EXPECT_EQ(attempts_, 5);
}

TEST_F(RetryTest, TheLastErrorsDetailIsKept) {
  absl::Status error = absl::UnavailableError("not there");
  error.SetPayload("of/a/test", absl::Cord("detail"));
  AnswerAfterFailures(1000, error);
  EXPECT_EQ(Set(absl::Seconds(5)).GetPayload("of/a/test"), "detail");
}

TEST_F(RetryTest, ACallThatThePeerCancelledIsRepeated) {
  AnswerAfterFailures(1, absl::CancelledError("CANCELLED"));
  CancelSignal cancel;
  EXPECT_OK(Set(absl::Seconds(30), &cancel));
  EXPECT_EQ(attempts_, 2);
  EXPECT_OK(Set(absl::Seconds(30)));
}

TEST_F(RetryTest, ACallThatWasCancelledHereIsNotRepeated) {
  CancelSignal cancel;
  cancel.Raise(absl::CancelledError("this worker has left"));
  AnswerAfterFailures(1, absl::CancelledError("this worker has left"));
  EXPECT_THAT(Set(absl::Seconds(30), &cancel),
              StatusIs(absl::StatusCode::kCancelled,
                       HasSubstr("this worker has left")));
  EXPECT_EQ(attempts_, 1);
}

TEST_F(RetryTest, RetriesNothingWithRetryFalse) {
  AnswerAfterFailures(1, absl::UnavailableError("not there"));
  EXPECT_THAT(Set(absl::Seconds(5), nullptr, /*retry=*/false),
              StatusIs(absl::StatusCode::kUnavailable, "not there"));
}

TEST_F(RetryTest, ARaisedSignalEndsThePause) {
  policy_.base = absl::Hours(1);
  policy_.cap = absl::Hours(1);
  stub_ = MakeRetryingStub(fake_, policy_);
  CancelSignal cancel;
  fake_->Answer<v1::SetRequest, v1::SetResponse>(
      "Store/Set", [&cancel](const v1::SetRequest&, const CallOptions&) {
        cancel.Raise(absl::AbortedError("the generation is over"));
        return absl::UnavailableError("not there");
      });
  EXPECT_THAT(Set(absl::Hours(2), &cancel),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("the generation is over")));
}

TEST_F(RetryTest, TimeAndPausesRestart) {
  policy_.base = absl::Microseconds(1);
  Retry retry(policy_, absl::Seconds(10), nullptr);
  clock_.Advance(absl::Seconds(9));
  EXPECT_TRUE(retry.Pause());
  EXPECT_EQ(retry.left(), absl::Seconds(1));
  retry.Restart();
  EXPECT_EQ(retry.left(), absl::Seconds(10));
  clock_.Advance(absl::Seconds(9));
  EXPECT_TRUE(retry.Pause());
  clock_.Advance(absl::Seconds(1));
  EXPECT_FALSE(retry.Pause());
}

// Those that a coordinator refuses a stream with, beside what a connection
// that breaks, or a proxy that is restarted, makes of one.
TEST(IsWorthReopeningTest, UnlessTheCoordinatorHasRefused) {
  EXPECT_FALSE(IsWorthReopening(absl::AbortedError("")));
  EXPECT_FALSE(IsWorthReopening(absl::FailedPreconditionError("")));
  EXPECT_FALSE(IsWorthReopening(absl::InvalidArgumentError("")));
  EXPECT_FALSE(IsWorthReopening(absl::NotFoundError("")));
  EXPECT_FALSE(IsWorthReopening(absl::PermissionDeniedError("")));
  EXPECT_FALSE(IsWorthReopening(absl::UnauthenticatedError("")));
  EXPECT_FALSE(IsWorthReopening(absl::UnimplementedError("")));
  EXPECT_TRUE(IsWorthReopening(absl::OkStatus()));
  EXPECT_TRUE(IsWorthReopening(absl::UnavailableError("")));
  EXPECT_TRUE(IsWorthReopening(absl::CancelledError("")));
  EXPECT_TRUE(IsWorthReopening(absl::UnknownError("")));
  EXPECT_TRUE(IsWorthReopening(absl::InternalError("")));
}

}  // namespace
}  // namespace coxswain::retry_test
