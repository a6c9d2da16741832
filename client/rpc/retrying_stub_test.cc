#include "client/rpc/retrying_stub.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "client/rpc/stub_factory.h"
#include "gtest/gtest.h"
#include "transport/error_detail.h"

namespace coxswain::retrying_stub_test {
namespace {

using ::testing::HasSubstr;

absl::Status Stale(const std::string& field, int64_t expected) {
  v1::ErrorDetail detail;
  detail.mutable_stale_fence()->set_field(field);
  detail.mutable_stale_fence()->set_expected(absl::StrCat(expected));
  return WithDetail(absl::FailedPreconditionError(absl::StrCat(
                        "stale ", field, ": ", expected, " is expected")),
                    detail);
}

// A coordinator that reads its verdicts on a Barrier from a list; then OK.
class RetryingStubTest : public ::testing::Test {
 protected:
  RetryingStubTest() {
    policy_.clock = &clock_;
    policy_.base = absl::Microseconds(1);
    policy_.cap = absl::Microseconds(1);
    stub_ = MakeRetryingStub(fake_, policy_, term_);
    fake_->Answer<v1::BarrierRequest, v1::BarrierResponse>(
        "Group/Barrier",
        [this](const v1::BarrierRequest& request,
               const CallOptions& call) -> absl::StatusOr<v1::BarrierResponse> {
          seen_.push_back(request);
          timeouts_.push_back(call.timeout);
          clock_.Advance(absl::Seconds(1));
          const size_t attempt = seen_.size() - 1;
          if (before_answer_ != nullptr) before_answer_(attempt);
          if (attempt < verdicts_.size()) return verdicts_[attempt];
          return v1::BarrierResponse();
        });
  }

  absl::Status Barrier(absl::Duration timeout, bool retry = true) {
    v1::BarrierRequest request;
    request.mutable_fence()->set_term(3);
    request.mutable_fence()->set_request_id(42);
    request.set_timeout_ms(absl::ToInt64Milliseconds(timeout));
    CallOptions options;
    options.timeout = timeout;
    options.cancel = &cancel_;
    options.retry = retry;
    return stub_->Barrier(request, options).status();
  }

  FakeClock clock_;
  RetryPolicy policy_;
  std::shared_ptr<CurrentTerm> term_ = std::make_shared<CurrentTerm>(3);
  std::shared_ptr<FakeCoordinatorStub> fake_ =
      std::make_shared<FakeCoordinatorStub>();
  std::shared_ptr<CoordinatorStub> stub_;
  CancelSignal cancel_;
  std::vector<absl::Status> verdicts_;
  std::function<void(size_t attempt)> before_answer_;
  std::vector<v1::BarrierRequest> seen_;
  std::vector<absl::Duration> timeouts_;
};

TEST_F(RetryingStubTest, ARepeatedWaitAsksForTheTimeThatIsLeft) {
  verdicts_ = {absl::UnavailableError("gone"), absl::UnavailableError("gone")};
  EXPECT_OK(Barrier(absl::Seconds(30)));
  ASSERT_EQ(seen_.size(), 3u);
  EXPECT_EQ(seen_[0].timeout_ms(), 30000);
  EXPECT_EQ(seen_[1].timeout_ms(), 29000);
  EXPECT_EQ(seen_[2].timeout_ms(), 28000);
  EXPECT_EQ(timeouts_[2], absl::Seconds(28));
  for (const auto& request : seen_) {
    EXPECT_EQ(request.fence().request_id(), 42u);
  }
}

TEST_F(RetryingStubTest, AnEarlierTermWaitsForTheAttachmentAndIsRepeated) {
  verdicts_ = {Stale("term", 5)};
  std::thread attachment;
  before_answer_ = [&](size_t attempt) {
    if (attempt == 0) attachment = std::thread([this]() { term_->Raise(5); });
  };
  EXPECT_OK(Barrier(absl::Seconds(30)));
  attachment.join();
  ASSERT_EQ(seen_.size(), 2u);
  EXPECT_EQ(seen_[0].fence().term(), 3);
  EXPECT_EQ(seen_[1].fence().term(), 5);
  EXPECT_EQ(seen_[1].fence().request_id(), 42u);
}

TEST_F(RetryingStubTest, ACallThatBeganBeforeTheNewTermHasItAtOnce) {
  term_->Raise(4);
  EXPECT_OK(Barrier(absl::Seconds(30)));
  ASSERT_EQ(seen_.size(), 1u);
  EXPECT_EQ(seen_[0].fence().term(), 4);
}

TEST_F(RetryingStubTest, SeveralRestartsInOneCall) {
  verdicts_ = {absl::UnavailableError("gone"), Stale("term", 4),
               absl::UnavailableError("gone"), Stale("term", 6)};
  before_answer_ = [&](size_t attempt) {
    if (attempt == 1) term_->Raise(4);
    if (attempt == 3) term_->Raise(6);
  };
  EXPECT_OK(Barrier(absl::Seconds(30)));
  ASSERT_EQ(seen_.size(), 5u);
  EXPECT_EQ(seen_[4].fence().term(), 6);
  EXPECT_EQ(seen_[4].timeout_ms(), 26000);
}

TEST_F(RetryingStubTest, ATermThatIsNeverAcceptedIsUnavailableAtTheDeadline) {
  verdicts_ = {Stale("term", 5)};
  EXPECT_THAT(Barrier(absl::Milliseconds(1020), /*retry=*/false),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("has not accepted the stream")));
  EXPECT_EQ(seen_.size(), 1u);
}

TEST_F(RetryingStubTest, TheEndOfTheGenerationEndsTheWaitForATerm) {
  verdicts_ = {Stale("term", 5)};
  std::thread end;
  before_answer_ = [&](size_t) {
    end = std::thread([this]() { cancel_.Raise(absl::AbortedError("lost")); });
  };
  EXPECT_THAT(Barrier(absl::Hours(1)),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("lost")));
  end.join();
}

TEST_F(RetryingStubTest,
       WithoutAnAttachmentTheCoordinatorIsAskedForItsOwnAnswer) {
  term_->Close();
  verdicts_ = {Stale("term", 5), Stale("generation", 9)};
  EXPECT_THAT(Barrier(absl::Hours(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("stale generation")));
  ASSERT_EQ(seen_.size(), 2u);
  EXPECT_EQ(seen_[1].fence().term(), 5);
}

TEST_F(RetryingStubTest, ACoordinatorThatWasReplacedCountsAsAway) {
  term_->Raise(7);
  verdicts_ = {Stale("term", 6)};
  EXPECT_OK(Barrier(absl::Seconds(30)));
  EXPECT_EQ(seen_.size(), 2u);
}

TEST_F(RetryingStubTest, AnotherGenerationIsFinal) {
  verdicts_ = {Stale("generation", 9)};
  EXPECT_THAT(Barrier(absl::Seconds(30)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("stale generation")));
  EXPECT_EQ(seen_.size(), 1u);
}

TEST_F(RetryingStubTest, AMomentIsLeftOfAWaitThatIsUsedUp) {
  fake_->Answer<v1::GetRequest, v1::GetResponse>(
      "Store/Get",
      [this](const v1::GetRequest& request,
             const CallOptions&) -> absl::StatusOr<v1::GetResponse> {
        clock_.Advance(absl::Seconds(2));
        timeouts_.push_back(absl::Milliseconds(request.timeout_ms()));
        if (timeouts_.size() == 1) return absl::UnavailableError("gone");
        return v1::GetResponse();
      });
  v1::GetRequest request;
  request.mutable_fence()->set_term(3);
  request.set_timeout_ms(1000);
  CallOptions options;
  options.timeout = absl::Seconds(6);  // longer, as WaitingCall has it
  EXPECT_OK(stub_->StoreGet(request, options));
  // 0 would mean not to wait at all, and be another question.
  EXPECT_EQ(timeouts_, (std::vector<absl::Duration>{absl::Seconds(1),
                                                    absl::Milliseconds(1)}));
}

TEST_F(RetryingStubTest, EachCoordinatorIsAskedForTheTimeThatIsLeft) {
  const auto standby = std::make_shared<FakeCoordinatorStub>();
  standby->connected = false;
  standby->Answer<v1::BarrierRequest, v1::BarrierResponse>(
      "Group/Barrier", [this](const v1::BarrierRequest&, const CallOptions&) {
        clock_.Advance(absl::Seconds(1));
        return absl::UnavailableError("nobody listens");
      });
  stub_ = MakeRetryingStub(MakeFailoverStub({standby, fake_}, &clock_), policy_,
                           term_);
  EXPECT_OK(Barrier(absl::Seconds(30)));
  ASSERT_EQ(seen_.size(), 1u);
  EXPECT_EQ(seen_[0].timeout_ms(), 29000);
  EXPECT_EQ(timeouts_[0], absl::Seconds(29));
}

TEST_F(RetryingStubTest, RequestsWithoutAFenceAreRepeatedAsTheyAre) {
  int asked = 0;
  fake_->Answer<v1::DescribeRequest, v1::DescribeResponse>(
      "Rendezvous/Describe",
      [&asked](const v1::DescribeRequest& request, const CallOptions& call)
          -> absl::StatusOr<v1::DescribeResponse> {
        EXPECT_EQ(request.job(), "j");
        EXPECT_TRUE(call.retry);
        if (++asked < 3) return absl::UnavailableError("gone");
        return v1::DescribeResponse();
      });
  v1::DescribeRequest request;
  request.set_job("j");
  EXPECT_OK(stub_->Describe(request, {}));
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace coxswain::retrying_stub_test
