#include "client/comm/executor.h"

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status_matchers.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(20);

// Something that operations wait for.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    changed_.NotifyAll();
  }
  bool Await() {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(
        &mutex_, kSoon,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return open_; });
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ = false;
};

absl::Status Nothing() { return absl::OkStatus(); }

TEST(ExecutorTest, RunsOneAfterTheOther) {
  Executor executor([](const absl::Status&) {});
  std::vector<int> order;
  WorkPtr last;
  for (int i = 0; i < 5; ++i) {
    last = executor.RunInOrder([&order, i] {
      order.push_back(i);
      return absl::OkStatus();
    });
  }
  EXPECT_OK(last->Wait(kSoon));
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4));
}

TEST(ExecutorTest, MessagesRunBesideEachOtherAndBesideTheRest) {
  Executor executor([](const absl::Status&) {});
  Gate gate;
  std::vector<WorkPtr> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(executor.RunBeside(Nothing, [&] {
      return gate.Await() ? absl::OkStatus() : absl::InternalError("stuck");
    }));
  }
  EXPECT_OK(executor.RunInOrder(Nothing)->Wait(kSoon));
  EXPECT_OK(executor.RunBeside(Nothing, Nothing)->Wait(kSoon));
  gate.Open();
  for (const WorkPtr& work : waiting) EXPECT_OK(work->Wait(kSoon));
}

TEST(ExecutorTest, AFailureEndsAllThatComesLater) {
  std::atomic<int> woken{0};
  Executor executor([&](const absl::Status&) { ++woken; });
  Gate gate;
  const WorkPtr first = executor.RunInOrder([&] {
    gate.Await();
    return absl::UnavailableError("the line is dead");
  });
  const WorkPtr queued = executor.RunInOrder(Nothing);
  gate.Open();
  EXPECT_THAT(first->Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "the line is dead"));
  const auto aborted =
      StatusIs(absl::StatusCode::kAborted,
               "an earlier operation failed: the line is dead");
  EXPECT_THAT(queued->Wait(kSoon), aborted);
  EXPECT_THAT(executor.RunInOrder(Nothing)->Wait(kSoon), aborted);
  EXPECT_THAT(executor.RunBeside(Nothing, Nothing)->Wait(kSoon), aborted);
  EXPECT_THAT(executor.Nothing()->Wait(kSoon), aborted);
  EXPECT_EQ(woken.load(), 1);
}

TEST(ExecutorTest, BadArgumentsStopNothing) {
  Executor executor([](const absl::Status&) {});
  EXPECT_THAT(
      executor
          .RunInOrder([] { return absl::InvalidArgumentError("no such root"); })
          ->Wait(kSoon),
      StatusIs(absl::StatusCode::kInvalidArgument, "no such root"));
  EXPECT_OK(executor.RunInOrder(Nothing)->Wait(kSoon));
}

TEST(ExecutorTest, AMessageThatCannotBePostedStopsToo) {
  Executor executor([](const absl::Status&) {});
  EXPECT_THAT(
      executor
          .RunBeside([] { return absl::UnavailableError("closed"); }, Nothing)
          ->Wait(kSoon),
      StatusIs(absl::StatusCode::kUnavailable, "closed"));
  EXPECT_THAT(executor.RunInOrder(Nothing)->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("closed")));
}

TEST(ExecutorTest, AbortWakesWhatRunsAndGivesItTheReason) {
  Gate gate;
  Executor executor([&](const absl::Status&) { gate.Open(); });
  const WorkPtr running = executor.RunInOrder([&] {
    gate.Await();
    return absl::AbortedError("woken");
  });
  executor.Abort("the member left");
  executor.Abort("another reason");
  EXPECT_THAT(running->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "the member left"));
}

TEST(ExecutorTest, DestructionEndsWhatWaits) {
  Gate gate;
  auto executor =
      std::make_unique<Executor>([&](const absl::Status&) { gate.Open(); });
  const WorkPtr running = executor->RunInOrder([&] {
    gate.Await();
    return absl::AbortedError("woken");
  });
  const WorkPtr queued = executor->RunInOrder(Nothing);
  executor.reset();
  EXPECT_TRUE(running->Done());
  EXPECT_THAT(queued->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("destroyed")));
}

}  // namespace
}  // namespace coxswain
