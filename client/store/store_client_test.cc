#include "client/store/store_client.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "client/rpc/member_context.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using ::testing::HasSubstr;

class StoreClientTest : public ::testing::Test {
 protected:
  StoreClientTest() {
    v1::Fence fence;
    fence.set_job("mnist");
    member_ = std::make_shared<MemberContext>(fake_, fence, RetryPolicy());
  }

  std::shared_ptr<FakeCoordinatorStub> fake_ =
      std::make_shared<FakeCoordinatorStub>();
  std::shared_ptr<MemberContext> member_;
};

TEST_F(StoreClientTest, AWaitIsSentToTheCoordinatorAndAnsweredByIt) {
  v1::GetRequest seen;
  absl::Duration timeout;
  fake_->Answer<v1::GetRequest, v1::GetResponse>(
      "Store/Get",
      [&](const v1::GetRequest& request,
          const CallOptions& options) -> absl::StatusOr<v1::GetResponse> {
        seen = request;
        timeout = options.timeout;
        return absl::DeadlineExceededError("key 'a' did not come in 1.5 s");
      });
  EXPECT_THAT(StoreClient(member_).Get("a", absl::Milliseconds(1500)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("did not come in 1.5 s")));
  EXPECT_EQ(seen.key(), "a");
  EXPECT_EQ(seen.timeout_ms(), 1500);
  // The coordinator's message is better than that of the transport.
  EXPECT_GT(timeout, absl::Milliseconds(1500));
}

TEST_F(StoreClientTest, CompareSetReturnsTheValueOfTheKey) {
  fake_->Answer<v1::CompareSetRequest, v1::CompareSetResponse>(
      "Store/CompareSet",
      [](const v1::CompareSetRequest& request, const CallOptions&) {
        EXPECT_EQ(request.expected(), "old");
        EXPECT_EQ(request.desired(), "new");
        EXPECT_NE(request.fence().request_id(), 0u);
        v1::CompareSetResponse response;
        response.set_value("other");
        return response;
      });
  ASSERT_OK_AND_ASSIGN(const auto result,
                       StoreClient(member_).CompareSet("k", "old", "new"));
  EXPECT_EQ(result.value, "other");
  EXPECT_FALSE(result.swapped);
}

TEST_F(StoreClientTest, EveryRequestHasAnIdOfItsOwn) {
  std::vector<uint64_t> ids;
  fake_->Answer<v1::AddRequest, v1::AddResponse>(
      "Store/Add", [&ids](const v1::AddRequest& request, const CallOptions&) {
        ids.push_back(request.fence().request_id());
        v1::AddResponse response;
        response.set_value(request.amount());
        return response;
      });
  StoreClient store(member_);
  EXPECT_THAT(store.Add("n", 5), IsOk());
  EXPECT_THAT(store.Add("n", 5), IsOk());
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_NE(ids[0], ids[1]);
}

TEST_F(StoreClientTest, AfterTheEndOfTheGenerationItsReasonIsTheError) {
  fake_->Answer<v1::DeleteKeyRequest, v1::DeleteKeyResponse>(
      "Store/DeleteKey", [](const v1::DeleteKeyRequest&, const CallOptions&) {
        return absl::FailedPreconditionError("stale generation");
      });
  member_->ended().Raise(absl::AbortedError("rank 1 was lost"));
  EXPECT_THAT(
      StoreClient(member_).DeleteKey("k"),
      StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1 was lost")));
}

// A watch, and what it has reported; the test plays the coordinator.
class WatchTest : public StoreClientTest {
 protected:
  using Streams = std::vector<StreamCallbacks<v1::WatchEvent>>;

  WatchTest() {
    RetryPolicy policy;
    policy.base = policy.cap = absl::Microseconds(10);
    v1::Fence fence;
    fence.set_term(3);
    member_ = std::make_shared<MemberContext>(fake_, fence, policy);
    fake_->on_watch = [this](const v1::WatchRequest& request,
                             StreamCallbacks<v1::WatchEvent> callbacks) {
      EXPECT_EQ(request.key(), "k");
      MutexLock lock(&mutex_);
      streams_.push_back(std::move(callbacks));
      terms_.push_back(request.fence().term());
      changed_.NotifyAll();
      return std::make_unique<EventStream>();
    };
    AnswerGet(absl::UnimplementedError("nobody asks"));
  }

  void AnswerGet(const absl::Status& answer) {
    fake_->Answer<v1::GetRequest, v1::GetResponse>(
        "Store/Get",
        [answer](const v1::GetRequest& request,
                 const CallOptions&) -> absl::StatusOr<v1::GetResponse> {
          EXPECT_EQ(request.timeout_ms(), 0);
          if (!answer.ok()) return answer;
          return v1::GetResponse();
        });
  }
  std::unique_ptr<StoreWatch> Watch() {
    return StoreClient(member_).Watch(
        "k",
        [this](const StoreEvent& event) {
          Say(event.deleted ? "deleted" : event.value);
        },
        [this](const absl::Status& status) {
          Say(absl::StrCat("end: ", status.message()));
        });
  }
  void Say(const std::string& what) {
    MutexLock lock(&mutex_);
    said_.push_back(what);
    changed_.NotifyAll();
  }
  // The n-th stream, from 0, once it is open.
  StreamCallbacks<v1::WatchEvent> Stream(size_t n) {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(changed_.WaitFor(
        &mutex_, absl::Seconds(20),
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return streams_.size() > n; }));
    return streams_.at(n);
  }
  std::vector<std::string> Said(size_t count) {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(changed_.WaitFor(&mutex_, absl::Seconds(20),
                                 [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                   return said_.size() >= count;
                                 }));
    return said_;
  }
  static v1::WatchEvent Value(const std::string& value) {
    v1::WatchEvent event;
    event.set_value(value);
    return event;
  }
  static v1::WatchEvent Deleted() {
    v1::WatchEvent event;
    event.set_deleted(true);
    return event;
  }

  Mutex mutex_;
  CondVar changed_;
  Streams streams_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> terms_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> said_ ABSL_GUARDED_BY(mutex_);
};

using Lines = std::vector<std::string>;

TEST_F(WatchTest, ReportsChangesAndItsEnd) {
  const auto watch = Watch();
  const auto stream = Stream(0);
  stream.on_event(Value("1"));
  stream.on_event(Deleted());
  EXPECT_EQ(Said(2), (Lines{"1", "deleted"}));
  member_->ended().Raise(absl::AbortedError("rank 1 was lost"));
  stream.on_end(absl::CancelledError("cancelled"));
  EXPECT_EQ(Said(3).back(), "end: rank 1 was lost");
}

TEST_F(WatchTest, OutlivesACoordinatorThatIsStartedAgain) {
  AnswerGet(absl::OkStatus());
  const auto watch = Watch();
  Stream(0).on_event(Value("1"));
  EXPECT_EQ(Said(1), (Lines{"1"}));
  member_->term().Raise(4);
  Stream(0).on_end(absl::UnavailableError("connection reset"));
  const auto again = Stream(1);
  again.on_event(Value("1"));  // the value that stands: nothing new
  again.on_event(Value("2"));
  EXPECT_EQ(Said(2), (Lines{"1", "2"}));
  again.on_event(Value("2"));  // set again
  EXPECT_EQ(Said(3), (Lines{"1", "2", "2"}));
  MutexLock lock(&mutex_);
  EXPECT_EQ(terms_, (std::vector<int64_t>{3, 4}));
}

TEST_F(WatchTest, SeesThatTheKeyWasDeletedWhileItWasAway) {
  AnswerGet(absl::NotFoundError("no such key"));
  const auto watch = Watch();
  Stream(0).on_event(Value("1"));
  EXPECT_EQ(Said(1), (Lines{"1"}));
  Stream(0).on_end(absl::UnavailableError("connection reset"));
  EXPECT_EQ(Said(2), (Lines{"1", "deleted"}));
}

TEST_F(WatchTest, OutlivesAProxyThatCutsIt) {
  AnswerGet(absl::OkStatus());
  const auto watch = Watch();
  Stream(0).on_event(Value("1"));
  EXPECT_EQ(Said(1), (Lines{"1"}));
  Stream(0).on_end(absl::UnknownError("Stream removed"));
  Stream(1).on_event(Value("2"));
  EXPECT_EQ(Said(2), (Lines{"1", "2"}));
}

TEST_F(WatchTest, ARefusalEndsIt) {
  const auto watch = Watch();
  Stream(0).on_end(absl::PermissionDeniedError("not of this job"));
  EXPECT_EQ(Said(1), (Lines{"end: not of this job"}));
}

TEST_F(WatchTest, AnErrorThatWillNotPassEndsIt) {
  const auto watch = Watch();
  Stream(0).on_end(absl::ResourceExhaustedError("too many watches"));
  EXPECT_EQ(Said(1), (Lines{"end: too many watches"}));
}

TEST_F(WatchTest, CanBeDestroyedWhileItIsOpen) {
  auto watch = Watch();
  Stream(0);
  watch.reset();
  EXPECT_EQ(Said(0), Lines());
}

TEST_F(StoreClientTest, ARendezvousKeepsToItsPrefix) {
  std::string key;
  fake_->Answer<v1::SetRequest, v1::SetResponse>(
      "Store/Set", [&key](const v1::SetRequest& request, const CallOptions&) {
        key = request.key();
        return v1::SetResponse();
      });
  EXPECT_OK(StoreRendezvous(member_, "7/dp").Set("rank0", "address"));
  EXPECT_EQ(key, "7/dp/rank0");
}

}  // namespace
}  // namespace coxswain
