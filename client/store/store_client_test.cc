#include "client/store/store_client.h"

#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using ::testing::HasSubstr;

class StoreClientTest : public ::testing::Test {
 protected:
  StoreClientTest() {
    v1::Fence fence;
    fence.set_job("mnist");
    membership_ = std::make_shared<Membership>(fake_, fence, RetryPolicy());
  }

  std::shared_ptr<FakeCoordinatorStub> fake_ =
      std::make_shared<FakeCoordinatorStub>();
  std::shared_ptr<Membership> membership_;
};

TEST_F(StoreClientTest, AWaitIsToldToTheCoordinatorAndAnsweredByIt) {
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
  EXPECT_THAT(StoreClient(membership_).Get("a", absl::Milliseconds(1500)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("did not come in 1.5 s")));
  EXPECT_EQ(seen.key(), "a");
  EXPECT_EQ(seen.timeout_ms(), 1500);
  // The coordinator's message is better than that of the transport.
  EXPECT_GT(timeout, absl::Milliseconds(1500));
}

TEST_F(StoreClientTest, CompareSetReturnsWhatStands) {
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
                       StoreClient(membership_).CompareSet("k", "old", "new"));
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
  StoreClient store(membership_);
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
  membership_->ended().Raise(absl::AbortedError("rank 1 was lost"));
  EXPECT_THAT(
      StoreClient(membership_).DeleteKey("k"),
      StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1 was lost")));
}

TEST_F(StoreClientTest, AWatchReportsChangesAndItsEnd) {
  StreamCallbacks<v1::WatchEvent> stream;
  fake_->on_watch = [&stream](const v1::WatchRequest& request,
                              StreamCallbacks<v1::WatchEvent> callbacks) {
    EXPECT_EQ(request.key(), "k");
    stream = std::move(callbacks);
    return std::make_unique<EventStream>();
  };
  std::vector<StoreEvent> events;
  absl::Status end;
  const auto watch =
      StoreClient(membership_)
          .Watch(
              "k",
              [&events](const StoreEvent& event) { events.push_back(event); },
              [&end](const absl::Status& status) { end = status; });
  v1::WatchEvent event;
  event.set_value("1");
  stream.on_event(event);
  event.Clear();
  event.set_deleted(true);
  stream.on_event(event);
  membership_->ended().Raise(absl::AbortedError("rank 1 was lost"));
  stream.on_end(absl::CancelledError("cancelled"));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].value, "1");
  EXPECT_TRUE(events[1].deleted);
  EXPECT_THAT(
      end, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1 was lost")));
}

TEST_F(StoreClientTest, ARendezvousKeepsToItsPrefix) {
  std::string key;
  fake_->Answer<v1::SetRequest, v1::SetResponse>(
      "Store/Set", [&key](const v1::SetRequest& request, const CallOptions&) {
        key = request.key();
        return v1::SetResponse();
      });
  EXPECT_OK(StoreRendezvous(membership_, "7/dp").Set("rank0", "address"));
  EXPECT_EQ(key, "7/dp/rank0");
}

}  // namespace
}  // namespace coxswain
