#include "client/rpc/stub_factory.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FailoverTest : public testing::Test {
 protected:
  FailoverTest() {
    std::vector<std::shared_ptr<CoordinatorStub>> stubs;
    for (int i = 0; i < 3; ++i) {
      all_.push_back(std::make_shared<FakeCoordinatorStub>());
      stubs.push_back(all_.back());
      outcomes_.push_back(absl::OkStatus());
      Stands(i);
      all_[i]->Answer<v1::DescribeRequest, v1::DescribeResponse>(
          "Rendezvous/Describe",
          [this, i](const v1::DescribeRequest&, const CallOptions& options)
              -> absl::StatusOr<v1::DescribeResponse> {
            asked_.push_back(i);
            timeouts_.push_back(options.timeout);
            clock_.Advance(absl::Seconds(1));
            if (!outcomes_[i].ok()) return outcomes_[i];
            return v1::DescribeResponse();
          });
    }
    stub_ = MakeFailoverStub(stubs, &clock_);
  }

  void Leads(int i) {
    outcomes_[i] = absl::OkStatus();
    all_[i]->connected = true;
  }
  void Stands(int i) {
    outcomes_[i] = absl::UnavailableError(absl::StrCat("refused by ", i));
    all_[i]->connected = false;
  }
  absl::Status Describe(bool retry = true) {
    CallOptions options;
    options.timeout = absl::Seconds(10);
    options.retry = retry;
    return stub_->Describe(v1::DescribeRequest(), options).status();
  }

  FakeClock clock_;
  std::vector<std::shared_ptr<FakeCoordinatorStub>> all_;
  std::vector<absl::Status> outcomes_;
  std::vector<int> asked_;
  std::vector<absl::Duration> timeouts_;
  std::shared_ptr<CoordinatorStub> stub_;
};

TEST_F(FailoverTest, StaysWithTheOneThatAnswers) {
  Leads(1);
  EXPECT_OK(Describe());
  EXPECT_OK(Describe());
  EXPECT_OK(Describe());
  EXPECT_THAT(asked_, ElementsAre(0, 1, 1, 1));
  // The time of the first try is not given again.
  EXPECT_EQ(timeouts_[0], absl::Seconds(10));
  EXPECT_EQ(timeouts_[1], absl::Seconds(9));
}

TEST_F(FailoverTest, FollowsTheLeadRoundAndRound) {
  Leads(2);
  EXPECT_OK(Describe());
  Stands(2);
  Leads(0);
  EXPECT_OK(Describe());
  Stands(0);
  Leads(2);
  EXPECT_OK(Describe());
  EXPECT_THAT(asked_, ElementsAre(0, 1, 2, 2, 0, 0, 1, 2));
}

TEST_F(FailoverTest, WithoutALeaderEachIsAskedOnce) {
  EXPECT_THAT(Describe(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("refused")));
  EXPECT_THAT(asked_, ElementsAre(0, 1, 2));
}

TEST_F(FailoverTest, OtherErrorsAreAnswers) {
  Leads(0);
  outcomes_[0] = absl::NotFoundError("no such job");
  EXPECT_THAT(Describe(), StatusIs(absl::StatusCode::kNotFound, testing::_));
  EXPECT_THAT(asked_, ElementsAre(0));
}

TEST_F(FailoverTest, ALeadersOwnUnavailableIsReturned) {
  Leads(1);
  outcomes_[1] = absl::UnavailableError("the disk is full");
  EXPECT_THAT(Describe(), StatusIs(absl::StatusCode::kUnavailable,
                                   HasSubstr("disk is full")));
  EXPECT_THAT(asked_, ElementsAre(0, 1));
  outcomes_[1] = absl::OkStatus();
  EXPECT_OK(Describe());
  EXPECT_THAT(asked_, ElementsAre(0, 1, 1));
}

TEST_F(FailoverTest, WhatMayNotBeRetriedIsTriedOnceAndTheNextElsewhere) {
  Leads(1);
  EXPECT_FALSE(Describe(/*retry=*/false).ok());
  EXPECT_OK(Describe(/*retry=*/false));
  EXPECT_THAT(asked_, ElementsAre(0, 1));
}

TEST_F(FailoverTest, TheTimeOfTheCallIsNotPassed) {
  CallOptions options;
  options.timeout = absl::Seconds(2);
  EXPECT_FALSE(stub_->Describe(v1::DescribeRequest(), options).ok());
  EXPECT_THAT(asked_, ElementsAre(0, 1));
}

TEST_F(FailoverTest, WhatIsCancelledIsNotTriedElsewhere) {
  CancelSignal cancel;
  CallOptions options;
  options.cancel = &cancel;
  all_[0]->Answer<v1::DescribeRequest, v1::DescribeResponse>(
      "Rendezvous/Describe",
      [&](const v1::DescribeRequest&, const CallOptions&) {
        cancel.Raise(absl::AbortedError("the generation is over"));
        return absl::UnavailableError("refused");
      });
  EXPECT_THAT(stub_->Describe(v1::DescribeRequest(), options),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("is over")));
  EXPECT_THAT(asked_, testing::IsEmpty());
}

class FailoverAttachTest : public FailoverTest {
 protected:
  FailoverAttachTest() {
    for (const auto& stub : all_) {
      stub->OnAttach([](FakeAttachment&) {});  // sends nothing yet
    }
    callbacks_.on_event = [this](const v1::AttachEvent&) { ++events_; };
    callbacks_.on_end = [this](const absl::Status& status) {
      ends_.push_back(status);
    };
  }
  static v1::AttachRequest Hello() {
    v1::AttachRequest request;
    request.mutable_hello();
    return request;
  }

  int events_ = 0;
  std::vector<absl::Status> ends_;
  StreamCallbacks<v1::AttachEvent> callbacks_;
};

TEST_F(FailoverAttachTest, EachIsAskedUntilOneAnswers) {
  const auto stream = stub_->Attach(callbacks_);
  EXPECT_TRUE(stream->Send(Hello()));
  for (int i = 0; i < 2; ++i) {
    all_[i]->AttachmentNumber(0)->End(absl::UnavailableError("refused"));
  }
  const auto attachment = all_[2]->AttachmentNumber(0);
  ASSERT_NE(attachment, nullptr);
  EXPECT_TRUE(attachment->WaitForRequest(
      [](const v1::AttachRequest& request) { return request.has_hello(); }));
  attachment->Attached();
  EXPECT_EQ(events_, 1);
  EXPECT_THAT(ends_, testing::IsEmpty());
  // What has been answered is not opened again by itself.
  attachment->End(absl::UnavailableError("gone"));
  EXPECT_THAT(ends_, ElementsAre(StatusIs(absl::StatusCode::kUnavailable,
                                          HasSubstr("gone"))));
  const auto next = stub_->Attach(callbacks_);
  EXPECT_NE(all_[0]->AttachmentNumber(1), nullptr);
}

TEST_F(FailoverAttachTest, WithoutAnAnswerTheLastRefusalIsTheEnd) {
  const auto stream = stub_->Attach(callbacks_);
  for (const auto& stub : all_) {
    stub->AttachmentNumber(0)->End(absl::UnavailableError("refused"));
  }
  EXPECT_THAT(ends_, ElementsAre(StatusIs(absl::StatusCode::kUnavailable,
                                          HasSubstr("refused"))));
}

TEST_F(FailoverAttachTest, AnotherEndIsAnAnswer) {
  const auto stream = stub_->Attach(callbacks_);
  all_[0]->AttachmentNumber(0)->End(absl::AbortedError("over"));
  EXPECT_THAT(ends_, ElementsAre(StatusIs(absl::StatusCode::kAborted, "over")));
  const auto next = stub_->Attach(callbacks_);
  EXPECT_NE(all_[0]->AttachmentNumber(1), nullptr);
}

TEST_F(FailoverAttachTest, NothingIsCalledBackOnceItIsDestroyed) {
  auto stream = stub_->Attach(callbacks_);
  const auto attachment = all_[0]->AttachmentNumber(0);
  stream.reset();
  attachment->Attached();
  attachment->End(absl::UnavailableError("gone"));
  EXPECT_EQ(events_, 0);
  EXPECT_THAT(ends_, testing::IsEmpty());
}

TEST_F(FailoverAttachTest, AStreamMayOutliveTheStub) {
  const auto stream = stub_->Attach(callbacks_);
  stub_.reset();
  all_[0]->AttachmentNumber(0)->End(absl::UnavailableError("gone"));
  EXPECT_NE(all_[1]->AttachmentNumber(0), nullptr);
}

TEST_F(FailoverTest, ItsAddressIsTheList) {
  EXPECT_EQ(stub_->address(), "127.0.0.1:4711,127.0.0.1:4711,127.0.0.1:4711");
}

}  // namespace
}  // namespace coxswain
