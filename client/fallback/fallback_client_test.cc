#include "client/fallback/fallback_client.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/rpc/grpc_coordinator_stub.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/plan.h"

namespace coxswain {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);

// A rank whose schedule is played by the test.
class Rank {
 public:
  Rank(int rank, int world_size, absl::Duration after = absl::ZeroDuration()) {
    FallbackClient::Options options;
    options.rank = rank;
    options.world_size = world_size;
    options.fence.set_cluster_id("cluster");
    options.fence.set_job("job");
    options.fence.set_generation(7);
    options.host = "127.0.0.1";
    options.after = after;
    options.retry.base = options.retry.cap = absl::Milliseconds(1);
    options.connect = [](const std::string& address) {
      return MakeGrpcCoordinatorStub(address);
    };
    FallbackClient::Callbacks callbacks;
    callbacks.needed = []() { return true; };
    callbacks.follow_none = [this]() { Set("nobody", 0, nullptr); };
    callbacks.follow_coordinator = [this]() { Set("coordinator", 0, nullptr); };
    callbacks.follow_fallback = [this](FallbackClient::Callbacks::Sender sender,
                                       const schedule::Epoch& epoch) {
      Set("fallback", epoch.fallback, std::move(sender));
    };
    callbacks.on_event = [this](const v1::AttachEvent& event) {
      MutexLock lock(&mutex_);
      if (event.has_decision()) received_ = event.decision().round();
      changed_.NotifyAll();
    };
    callbacks.plan = []() {
      schedule::Plan plan;
      plan.version = 1;
      return plan;
    };
    client_ = std::make_unique<FallbackClient>(options, callbacks);
  }
  ~Rank() { client_.reset(); }

  FallbackClient& client() { return *client_; }
  bool Await(const std::string& leader, int64_t epoch = 0) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, kTimeout, [&]() {
      return leader_ == leader && (epoch == 0 || epoch_ == epoch);
    });
  }
  bool AwaitDecision(int64_t round) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, kTimeout,
                            [&]() { return received_ == round; });
  }
  void Announce(int64_t round) {
    v1::AttachRequest request;
    request.mutable_ticket()->set_stream("train");
    request.mutable_ticket()->set_round(round);
    request.mutable_ticket()->set_step(round);
    request.mutable_ticket()->set_micro_batches(1);
    request.mutable_ticket()->set_window(1);
    request.mutable_ticket()->set_weight(1);
    request.mutable_ticket()->set_plan_version(1);
    FallbackClient::Callbacks::Sender sender;
    {
      MutexLock lock(&mutex_);
      sender = sender_;
    }
    ASSERT_TRUE(sender != nullptr && sender(request));
  }
  std::string leader() {
    MutexLock lock(&mutex_);
    return leader_;
  }

 private:
  void Set(std::string leader, int64_t epoch,
           FallbackClient::Callbacks::Sender sender) {
    MutexLock lock(&mutex_);
    leader_ = std::move(leader);
    epoch_ = epoch;
    sender_ = std::move(sender);
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  std::string leader_;
  int64_t epoch_ = 0;
  int64_t received_ = -1;
  FallbackClient::Callbacks::Sender sender_;
  std::unique_ptr<FallbackClient> client_;
};

class FallbackClientTest : public testing::Test {
 protected:
  FallbackClientTest() {
    for (Rank* rank : {&first_, &second_}) {
      rank->client().NoteAddress(first_.client().address());
      rank->client().OnAttached();
    }
  }
  Rank first_{0, 2};
  Rank second_{1, 2};
};

TEST_F(FallbackClientTest, BothAgreeWithoutACoordinator) {
  EXPECT_EQ(second_.client().address(), "");
  EXPECT_EQ(first_.leader(), "coordinator");
  for (Rank* rank : {&first_, &second_}) rank->client().OnLost();
  for (Rank* rank : {&first_, &second_}) ASSERT_TRUE(rank->Await("fallback"));
  for (int64_t round = 0; round < 20; ++round) {
    for (Rank* rank : {&first_, &second_}) rank->Announce(round);
    for (Rank* rank : {&first_, &second_}) {
      ASSERT_TRUE(rank->AwaitDecision(round));
    }
  }
}

TEST_F(FallbackClientTest, TheCoordinatorIsFollowedOnceTheRankIsReleased) {
  for (Rank* rank : {&first_, &second_}) rank->client().OnLost();
  for (Rank* rank : {&first_, &second_}) ASSERT_TRUE(rank->Await("fallback"));
  second_.Announce(0);
  second_.client().OnAttached();
  ASSERT_TRUE(second_.Await("coordinator"));
  // What it sent there counts no more, so nothing is decided before it is back,
  // in the next epoch.
  second_.client().OnLost();
  ASSERT_TRUE(second_.Await("fallback", 2));
  ASSERT_TRUE(first_.Await("fallback", 2));
  first_.Announce(0);
  second_.Announce(0);
  EXPECT_TRUE(first_.AwaitDecision(0));
  EXPECT_TRUE(second_.AwaitDecision(0));
}

TEST_F(FallbackClientTest, ACoordinatorThatIsLostAgainAtOnceComesBack) {
  for (Rank* rank : {&first_, &second_}) rank->client().OnLost();
  for (Rank* rank : {&first_, &second_}) ASSERT_TRUE(rank->Await("fallback"));
  for (int i = 0; i < 50; ++i) {
    second_.client().OnAttached();
    second_.client().OnLost();
    ASSERT_TRUE(second_.Await("fallback")) << i;
  }
}

TEST_F(FallbackClientTest, OnceRankZeroHasLeftTheCoordinatorIsFollowed) {
  for (Rank* rank : {&first_, &second_}) rank->client().OnLost();
  for (Rank* rank : {&first_, &second_}) ASSERT_TRUE(rank->Await("fallback"));
  first_.client().End();
  ASSERT_TRUE(second_.Await("nobody"));
  second_.client().OnAttached();
  second_.client().NoteRankLeft(0);
  EXPECT_TRUE(second_.Await("coordinator"));
}

// In a large generation members are not notified of one that leaves.
TEST_F(FallbackClientTest, AnEmptyAddressMeansThatRankZeroHasLeft) {
  for (Rank* rank : {&first_, &second_}) rank->client().OnLost();
  for (Rank* rank : {&first_, &second_}) ASSERT_TRUE(rank->Await("fallback"));
  first_.client().End();
  ASSERT_TRUE(second_.Await("nobody"));
  second_.client().OnAttached();
  second_.client().NoteAddress("");
  EXPECT_TRUE(second_.Await("coordinator"));
}

TEST_F(FallbackClientTest, AShortLossIsNoReason) {
  Rank patient(0, 1, absl::Hours(1));
  patient.client().OnAttached();
  patient.client().OnLost();
  EXPECT_EQ(patient.leader(), "nobody");
  patient.client().OnAttached();
  EXPECT_EQ(patient.leader(), "coordinator");
}

TEST_F(FallbackClientTest, ARankAloneDecidesForItself) {
  Rank alone(0, 1);
  EXPECT_EQ(alone.client().address(), "");
  alone.client().OnLost();
  ASSERT_TRUE(alone.Await("fallback"));
  alone.Announce(0);
  EXPECT_TRUE(alone.AwaitDecision(0));
}

// What the fallback coordinator answers to peers that it does not know.
class FallbackAttachTest : public FallbackClientTest {
 protected:
  // How the stream ends that begins with this.
  absl::Status EndOf(const v1::AttachRequest& request) {
    Mutex mutex;
    CondVar changed;
    bool ended = false;
    absl::Status end;
    StreamCallbacks<v1::AttachEvent> callbacks;
    callbacks.on_event = [](const v1::AttachEvent&) {};
    callbacks.on_end = [&](const absl::Status& status) {
      MutexLock lock(&mutex);
      ended = true;
      end = status;
      changed.NotifyAll();
    };
    const auto stub = MakeGrpcCoordinatorStub(first_.client().address());
    const auto stream = stub->Attach(callbacks);
    EXPECT_TRUE(stream->Send(request));
    MutexLock lock(&mutex);
    EXPECT_TRUE(
        changed.WaitFor(&mutex, kTimeout, [&ended]() { return ended; }));
    return end;
  }
  static v1::AttachRequest Hello(int rank, int64_t generation) {
    v1::AttachRequest request;
    request.mutable_hello()->set_rank(rank);
    v1::Fence* fence = request.mutable_hello()->mutable_fence();
    fence->set_cluster_id("cluster");
    fence->set_job("job");
    fence->set_generation(generation);
    return request;
  }
};

TEST_F(FallbackAttachTest, ACallerThatIsNoMemberIsRefused) {
  EXPECT_THAT(EndOf(Hello(0, 8)),
              StatusIs(absl::StatusCode::kFailedPrecondition, testing::_));
  EXPECT_THAT(EndOf(Hello(2, 7)),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  EXPECT_THAT(EndOf(Hello(-1, 7)),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  v1::AttachRequest ticket;
  ticket.mutable_ticket()->set_stream("train");
  EXPECT_THAT(EndOf(ticket),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
}

// An attachment that the test holds open, and how it ended.
class HeldAttachment {
 public:
  explicit HeldAttachment(const std::string& address)
      : stub_(MakeGrpcCoordinatorStub(address)) {
    StreamCallbacks<v1::AttachEvent> callbacks;
    callbacks.on_event = [this](const v1::AttachEvent& event) {
      MutexLock lock(&mutex_);
      attached_ = attached_ || event.has_attached();
      changed_.NotifyAll();
    };
    callbacks.on_end = [this](const absl::Status& status) {
      MutexLock lock(&mutex_);
      end_ = status;
      changed_.NotifyAll();
    };
    stream_ = stub_->Attach(callbacks);
  }

  bool Send(const v1::AttachRequest& request) { return stream_->Send(request); }
  bool AwaitAttached() {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, kTimeout, [this]() { return attached_; });
  }
  absl::Status AwaitEnd() {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(changed_.WaitFor(&mutex_, kTimeout,
                                 [this]() { return end_.has_value(); }));
    return end_.value_or(absl::OkStatus());
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool attached_ = false;
  std::optional<absl::Status> end_;
  std::shared_ptr<CoordinatorStub> stub_;
  std::shared_ptr<AttachStream> stream_;
};

TEST_F(FallbackAttachTest, AMessageIsNotLargerThanTheLimit) {
  v1::AttachRequest request = Hello(1, 7);
  request.mutable_hello()->set_fallback_address(std::string(2 << 20, 'x'));
  EXPECT_THAT(EndOf(request),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::_));
}

TEST_F(FallbackAttachTest, ARankHasOneAttachment) {
  HeldAttachment first(first_.client().address());
  ASSERT_TRUE(first.Send(Hello(1, 7)));
  ASSERT_TRUE(first.AwaitAttached());
  HeldAttachment second(first_.client().address());
  ASSERT_TRUE(second.Send(Hello(1, 7)));
  EXPECT_TRUE(second.AwaitAttached());
  EXPECT_THAT(first.AwaitEnd(),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

}  // namespace
}  // namespace coxswain
