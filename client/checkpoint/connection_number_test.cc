#include "client/checkpoint/async_checkpoint.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "client/rpc/member_context.h"
#include "gtest/gtest.h"

namespace coxswain::connection_number_test {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(20);
constexpr absl::Duration kShort = absl::Milliseconds(20);

class Stream : public EventStream {
 public:
  explicit Stream(std::function<void()> end) : end_(std::move(end)) {}
  ~Stream() override { end_(); }

 private:
  const std::function<void()> end_;
};

// A store of one key, which it sends to its watchers.
class ConnectionNumberTest : public ::testing::Test {
 protected:
  ConnectionNumberTest() {
    fake_->Answer<v1::SetRequest, v1::SetResponse>(
        "Store/Set", [this](const v1::SetRequest& request, const CallOptions&) {
          MutexLock lock(&mutex_);
          value_ = request.value();
          for (const auto& [id, to] : watchers_) to.on_event(EventLocked());
          return v1::SetResponse();
        });
    fake_->on_watch = [this](const v1::WatchRequest&,
                             StreamCallbacks<v1::WatchEvent> callbacks) {
      MutexLock lock(&mutex_);
      if (!value_.empty()) callbacks.on_event(EventLocked());
      watchers_[++watches_] = std::move(callbacks);
      watched_.NotifyAll();
      return std::make_unique<Stream>([this, id = watches_] {
        MutexLock lock(&mutex_);
        watchers_.erase(id);
      });
    };
    member_ =
        std::make_shared<MemberContext>(fake_, v1::Fence(), RetryPolicy());
    store_ = std::make_unique<StoreClient>(member_);
  }

  v1::WatchEvent EventLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    v1::WatchEvent event;
    event.set_value(value_);
    return event;
  }
  ConnectionNumber Rank(int rank, absl::Duration timeout = kTimeout) {
    return ConnectionNumber(rank, store_.get(), timeout);
  }
  void WaitForWatches(int count) {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(watched_.WaitFor(
        &mutex_, kTimeout,
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return watches_ >= count; }));
  }

  std::shared_ptr<FakeCoordinatorStub> fake_ =
      std::make_shared<FakeCoordinatorStub>();
  std::shared_ptr<MemberContext> member_;
  std::unique_ptr<StoreClient> store_;
  Mutex mutex_;
  CondVar watched_;
  std::string value_ ABSL_GUARDED_BY(mutex_);
  int watches_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int, StreamCallbacks<v1::WatchEvent>> watchers_
      ABSL_GUARDED_BY(mutex_);
};

TEST_F(ConnectionNumberTest, RanksWithDifferentNumbersOfAttemptsMeet) {
  ConnectionNumber zero = Rank(0), one = Rank(1), two = Rank(2);
  EXPECT_EQ(zero.Next().value_or(-1), 1);
  EXPECT_EQ(one.Next().value_or(-1), 1);
  // Rank 2 has missed what rank 0 has tried since.
  EXPECT_EQ(zero.Next().value_or(-1), 2);
  EXPECT_EQ(zero.Next().value_or(-1), 3);
  EXPECT_EQ(two.Next().value_or(-1), 3);
  EXPECT_EQ(one.Next().value_or(-1), 3);
}

TEST_F(ConnectionNumberTest, ARankThatTriedTheLastNumberWaitsForTheNext) {
  ConnectionNumber zero = Rank(0), one = Rank(1);
  ASSERT_OK(zero.Next());
  ASSERT_OK(one.Next());
  absl::StatusOr<int64_t> next;
  std::thread waits([&] { next = one.Next(); });
  WaitForWatches(2);
  EXPECT_OK(zero.Next());
  waits.join();
  EXPECT_EQ(next.value_or(-1), 2);
}

TEST_F(ConnectionNumberTest, NoRankTriesANumberThatFailedOnRankZero) {
  ConnectionNumber zero = Rank(0), one = Rank(1, kShort);
  ASSERT_OK(zero.Next());
  zero.GiveUp();
  one.GiveUp();
  EXPECT_THAT(one.Next(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                   HasSubstr("rank 0 has not connected")));
  EXPECT_EQ(zero.Next().value_or(-1), 2);
  EXPECT_EQ(one.Next().value_or(-1), 2);
}

TEST_F(ConnectionNumberTest, TheEndOfTheGenerationEndsTheWait) {
  ConnectionNumber one = Rank(1);
  absl::StatusOr<int64_t> next;
  std::thread waits([&] { next = one.Next(); });
  WaitForWatches(1);
  const absl::Status lost = absl::AbortedError("rank 2 was lost");
  member_->ended().Raise(lost);
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, to] : watchers_) to.on_end(lost);
  }
  waits.join();
  EXPECT_THAT(
      next, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2 was lost")));
}

}  // namespace
}  // namespace coxswain::connection_number_test
