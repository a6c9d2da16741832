#include "client/rpc/retrying_coordinator_stub.h"

#include <memory>
#include <set>

#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "gtest/gtest.h"

namespace coxswain::retrying_coordinator_stub_test {
namespace {

using ::testing::HasSubstr;

class RetryingCoordinatorStubTest : public ::testing::Test {
 protected:
  RetryingCoordinatorStubTest() {
    policy_.clock = &clock_;
    policy_.base = absl::Microseconds(1);
    policy_.cap = absl::Microseconds(1);
    stub_ = MakeRetryingCoordinatorStub(fake_, policy_);
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

TEST_F(RetryingCoordinatorStubTest, RepeatsTheSameRequestWhileUnavailable) {
  AnswerAfterFailures(3, absl::UnavailableError("not there"));
  EXPECT_OK(Set(absl::Seconds(30)));
  EXPECT_EQ(attempts_, 4);
  EXPECT_EQ(request_ids_, std::set<uint64_t>{42});
}

TEST_F(RetryingCoordinatorStubTest, EachAttemptGetsTheTimeThatIsLeft) {
  AnswerAfterFailures(2, absl::UnavailableError("not there"));
  EXPECT_OK(Set(absl::Seconds(30)));
  EXPECT_EQ(timeouts_,
            (std::vector<absl::Duration>{absl::Seconds(30), absl::Seconds(29),
                                         absl::Seconds(28)}));
}

TEST_F(RetryingCoordinatorStubTest, ReturnsOtherErrorsAtOnce) {
  AnswerAfterFailures(3, absl::ResourceExhaustedError("too many keys"));
  EXPECT_THAT(Set(absl::Seconds(30)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("too many keys")));
  EXPECT_EQ(attempts_, 1);
}

TEST_F(RetryingCoordinatorStubTest, GivesUpAtTheOverallDeadline) {
  AnswerAfterFailures(1000, absl::UnavailableError("not there"));
  EXPECT_THAT(Set(absl::Seconds(5)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not there")));
  EXPECT_EQ(attempts_, 5);
}

TEST_F(RetryingCoordinatorStubTest, WhatNobodyHereHasCancelledIsRepeated) {
  AnswerAfterFailures(1, absl::CancelledError("CANCELLED"));
  CancelSignal cancel;
  EXPECT_OK(Set(absl::Seconds(30), &cancel));
  EXPECT_EQ(attempts_, 2);
  EXPECT_OK(Set(absl::Seconds(30)));
}

TEST_F(RetryingCoordinatorStubTest, WhatWasCancelledHereIsNot) {
  CancelSignal cancel;
  cancel.Raise(absl::CancelledError("this worker has left"));
  AnswerAfterFailures(1, absl::CancelledError("this worker has left"));
  EXPECT_THAT(Set(absl::Seconds(30), &cancel),
              StatusIs(absl::StatusCode::kCancelled,
                       HasSubstr("this worker has left")));
  EXPECT_EQ(attempts_, 1);
}

TEST_F(RetryingCoordinatorStubTest, RetriesNothingWhenToldSo) {
  AnswerAfterFailures(1, absl::UnavailableError("not there"));
  EXPECT_THAT(Set(absl::Seconds(5), nullptr, /*retry=*/false),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not there")));
}

TEST_F(RetryingCoordinatorStubTest, ARaisedSignalEndsThePause) {
  policy_.base = absl::Hours(1);
  policy_.cap = absl::Hours(1);
  stub_ = MakeRetryingCoordinatorStub(fake_, policy_);
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

}  // namespace
}  // namespace coxswain::retrying_coordinator_stub_test
