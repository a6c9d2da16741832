#include "client/stand_in/stand_in.h"

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

constexpr absl::Duration kPatience = absl::Seconds(20);

// A rank whose schedule is played by the test.
class Rank {
 public:
  Rank(int rank, int world_size, absl::Duration after = absl::ZeroDuration()) {
    StandIn::Options options;
    options.rank = rank;
    options.world_size = world_size;
    options.fence.set_cluster_id("cluster");
    options.fence.set_job("job");
    options.fence.set_generation(7);
    options.host = "127.0.0.1";
    options.after = after;
    options.retry_base = options.retry_cap = absl::Milliseconds(1);
    options.connect = [](const std::string& address) {
      return MakeGrpcCoordinatorStub(address);
    };
    StandIn::Callbacks callbacks;
    callbacks.needed = []() { return true; };
    callbacks.follow_nobody = [this]() { Set("nobody", 0, nullptr); };
    callbacks.follow_coordinator = [this]() { Set("coordinator", 0, nullptr); };
    callbacks.follow_stand_in = [this](StandIn::Callbacks::Sender sender,
                                       int64_t spell) {
      Set("stand-in", spell, std::move(sender));
    };
    callbacks.on_event = [this](const v1::AttachEvent& event, int64_t) {
      MutexLock lock(&mutex_);
      if (event.has_decision()) heard_ = event.decision().round();
      changed_.NotifyAll();
    };
    callbacks.plan = []() {
      schedule::Plan plan;
      plan.version = 1;
      return plan;
    };
    stand_in_ = std::make_unique<StandIn>(options, callbacks);
  }
  ~Rank() { stand_in_.reset(); }

  StandIn& stand_in() { return *stand_in_; }
  bool Await(const std::string& leader, int64_t spell = 0) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, kPatience, [&]() {
      return leader_ == leader && (spell == 0 || spell_ == spell);
    });
  }
  bool AwaitHeard(int64_t round) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, kPatience,
                            [&]() { return heard_ == round; });
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
    StandIn::Callbacks::Sender sender;
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
  void Set(std::string leader, int64_t spell,
           StandIn::Callbacks::Sender sender) {
    MutexLock lock(&mutex_);
    leader_ = std::move(leader);
    spell_ = spell;
    sender_ = std::move(sender);
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  std::string leader_;
  int64_t spell_ = 0;
  int64_t heard_ = -1;
  StandIn::Callbacks::Sender sender_;
  std::unique_ptr<StandIn> stand_in_;
};

class StandInTest : public testing::Test {
 protected:
  StandInTest() {
    for (Rank* rank : {&first_, &second_}) {
      rank->stand_in().NoteAddress(first_.stand_in().address());
      rank->stand_in().OnAttached();
    }
  }
  Rank first_{0, 2};
  Rank second_{1, 2};
};

TEST_F(StandInTest, BothAgreeWithoutACoordinator) {
  EXPECT_EQ(second_.stand_in().address(), "");
  EXPECT_EQ(first_.leader(), "coordinator");
  for (Rank* rank : {&first_, &second_}) rank->stand_in().OnLost();
  for (Rank* rank : {&first_, &second_}) ASSERT_TRUE(rank->Await("stand-in"));
  for (int64_t round = 0; round < 20; ++round) {
    for (Rank* rank : {&first_, &second_}) rank->Announce(round);
    for (Rank* rank : {&first_, &second_}) {
      ASSERT_TRUE(rank->AwaitHeard(round));
    }
  }
}

TEST_F(StandInTest, TheCoordinatorIsFollowedOnceTheStandInHasLetGo) {
  for (Rank* rank : {&first_, &second_}) rank->stand_in().OnLost();
  for (Rank* rank : {&first_, &second_}) ASSERT_TRUE(rank->Await("stand-in"));
  second_.Announce(0);
  second_.stand_in().OnAttached();
  ASSERT_TRUE(second_.Await("coordinator"));
  // What it said there counts no more, so nothing is decided before it is back,
  // in the next spell.
  second_.stand_in().OnLost();
  ASSERT_TRUE(second_.Await("stand-in", 2));
  ASSERT_TRUE(first_.Await("stand-in", 2));
  first_.Announce(0);
  second_.Announce(0);
  EXPECT_TRUE(first_.AwaitHeard(0));
  EXPECT_TRUE(second_.AwaitHeard(0));
}

TEST_F(StandInTest, WithoutAStandInRankZeroHasLeftTheCoordinatorIsFollowed) {
  for (Rank* rank : {&first_, &second_}) rank->stand_in().OnLost();
  for (Rank* rank : {&first_, &second_}) ASSERT_TRUE(rank->Await("stand-in"));
  first_.stand_in().End();
  ASSERT_TRUE(second_.Await("nobody"));
  second_.stand_in().OnAttached();
  second_.stand_in().NoteRankLeft(0);
  EXPECT_TRUE(second_.Await("coordinator"));
}

// In a large generation nobody is told of a member that leaves.
TEST_F(StandInTest, AnEmptyAddressSaysThatRankZeroHasLeft) {
  for (Rank* rank : {&first_, &second_}) rank->stand_in().OnLost();
  for (Rank* rank : {&first_, &second_}) ASSERT_TRUE(rank->Await("stand-in"));
  first_.stand_in().End();
  ASSERT_TRUE(second_.Await("nobody"));
  second_.stand_in().OnAttached();
  second_.stand_in().NoteAddress("");
  EXPECT_TRUE(second_.Await("coordinator"));
}

TEST_F(StandInTest, AShortLossIsNoReason) {
  Rank patient(0, 1, absl::Hours(1));
  patient.stand_in().OnAttached();
  patient.stand_in().OnLost();
  EXPECT_EQ(patient.leader(), "nobody");
  patient.stand_in().OnAttached();
  EXPECT_EQ(patient.leader(), "coordinator");
}

TEST_F(StandInTest, ARankAloneStandsInForItself) {
  Rank alone(0, 1);
  EXPECT_EQ(alone.stand_in().address(), "");
  alone.stand_in().OnLost();
  ASSERT_TRUE(alone.Await("stand-in"));
  alone.Announce(0);
  EXPECT_TRUE(alone.AwaitHeard(0));
}

// What the stand-in answers to those that it does not know.
class VisitorTest : public StandInTest {
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
    const auto stub = MakeGrpcCoordinatorStub(first_.stand_in().address());
    const auto stream = stub->Attach(callbacks);
    EXPECT_TRUE(stream->Send(request));
    MutexLock lock(&mutex);
    EXPECT_TRUE(
        changed.WaitFor(&mutex, kPatience, [&ended]() { return ended; }));
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

TEST_F(VisitorTest, WhoIsNoMemberIsRefused) {
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

// A visit that the test holds open, and how it ended.
class HeldVisit {
 public:
  explicit HeldVisit(const std::string& address)
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
    return changed_.WaitFor(&mutex_, kPatience, [this]() { return attached_; });
  }
  absl::Status AwaitEnd() {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(changed_.WaitFor(&mutex_, kPatience,
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

TEST_F(VisitorTest, AMessageIsNotLargerThanTheLimit) {
  v1::AttachRequest request = Hello(1, 7);
  request.mutable_hello()->set_stand_in(std::string(2 << 20, 'x'));
  EXPECT_THAT(EndOf(request),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::_));
}

TEST_F(VisitorTest, ARankHasOneVisit) {
  HeldVisit first(first_.stand_in().address());
  ASSERT_TRUE(first.Send(Hello(1, 7)));
  ASSERT_TRUE(first.AwaitAttached());
  HeldVisit second(first_.stand_in().address());
  ASSERT_TRUE(second.Send(Hello(1, 7)));
  EXPECT_TRUE(second.AwaitAttached());
  EXPECT_THAT(first.AwaitEnd(),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

}  // namespace
}  // namespace coxswain
