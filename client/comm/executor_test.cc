#include "client/comm/executor.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status_matchers.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr absl::Duration kSoon = absl::Seconds(20);

// Something that operations wait for.
class Latch {
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
  Latch latch;
  std::vector<WorkPtr> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(executor.RunBeside(Nothing, [&] {
      return latch.Await() ? absl::OkStatus() : absl::InternalError("stuck");
    }));
  }
  EXPECT_OK(executor.RunInOrder(Nothing)->Wait(kSoon));
  EXPECT_OK(executor.RunBeside(Nothing, Nothing)->Wait(kSoon));
  latch.Open();
  for (const WorkPtr& work : waiting) EXPECT_OK(work->Wait(kSoon));
}

TEST(ExecutorTest, WhatFailsBecauseOfAnAbortHasItsReason) {
  // As where peers go, and a connection of theirs breaks.
  Latch gone;
  Executor executor([&](const absl::Status&) { gone.Open(); });
  const WorkPtr work = executor.RunInOrder([&] {
    EXPECT_TRUE(gone.Await());
    return absl::UnavailableError("rank 1 is gone");
  });
  executor.Abort("enough");
  EXPECT_THAT(work->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
}

TEST(ExecutorTest, AFailureEndsAllThatComesLater) {
  std::atomic<int> woken{0};
  Executor executor([&](const absl::Status&) { ++woken; });
  Latch latch;
  const WorkPtr first = executor.RunInOrder([&] {
    latch.Await();
    return absl::UnavailableError("the line is dead");
  });
  const WorkPtr queued = executor.RunInOrder(Nothing);
  latch.Open();
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

// Only the wait knows when what was posted no longer uses the caller's memory.
TEST(ExecutorTest, WhatWasPostedBeforeAStopIsWaitedFor) {
  Latch latch;
  Executor executor([&](const absl::Status&) { latch.Open(); });
  bool waited = false;
  const WorkPtr work = executor.RunBeside(
      [&] {
        executor.Abort("stopped meanwhile");
        return absl::OkStatus();
      },
      [&] {
        latch.Await();
        waited = true;
        return absl::AbortedError("woken");
      });
  EXPECT_THAT(work->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "stopped meanwhile"));
  EXPECT_TRUE(waited);
}

TEST(ExecutorTest, WhatNoThreadHasTakenUpYetIsWaitedForToo) {
  for (int round = 0; round < 200; ++round) {
    Latch latch;
    std::atomic<bool> waited{false};
    Executor executor([&](const absl::Status&) { latch.Open(); });
    const WorkPtr work = executor.RunBeside(Nothing, [&] {
      latch.Await();
      waited = true;
      return absl::AbortedError("woken");
    });
    executor.Abort("at once");
    EXPECT_THAT(work->Wait(kSoon),
                StatusIs(absl::StatusCode::kAborted, "at once"));
    ASSERT_TRUE(waited) << "round " << round;
  }
}

TEST(ExecutorTest, AbortWakesRunningOperationsWithTheReason) {
  Latch latch;
  Executor executor([&](const absl::Status&) { latch.Open(); });
  const WorkPtr running = executor.RunInOrder([&] {
    latch.Await();
    return absl::AbortedError("woken");
  });
  executor.Abort("the member left");
  executor.Abort("another reason");
  EXPECT_THAT(running->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "the member left"));
}

TEST(ExecutorTest, DestructionEndsWhatWaits) {
  Latch latch;
  auto executor =
      std::make_unique<Executor>([&](const absl::Status&) { latch.Open(); });
  const WorkPtr running = executor->RunInOrder([&] {
    latch.Await();
    return absl::AbortedError("woken");
  });
  const WorkPtr queued = executor->RunInOrder(Nothing);
  executor.reset();
  EXPECT_TRUE(running->Done());
  EXPECT_THAT(queued->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("destroyed")));
}

// An assisted operation that ends once its latch is open, and the thread that
// ran it.
class Errand {
 public:
  struct Try {
    absl::Time until;
    std::thread::id thread;
  };

  WorkPtr Begin(Executor& executor) {
    return executor.TryRunAssisted(
        [this] { begun_ = true; },
        [this](absl::Time until) { return Complete(until); });
  }
  bool begun() const { return begun_; }
  // Where a thread waits for the latch.
  bool AwaitWaiter() { return waited_for_.Await(); }
  void Finish(absl::Status status = absl::OkStatus()) {
    {
      MutexLock lock(&mutex_);
      result_ = std::move(status);
    }
    latch_.Open();
  }
  std::vector<Try> tries() const {
    MutexLock lock(&mutex_);
    return tries_;
  }

 private:
  std::optional<absl::Status> Complete(absl::Time until) {
    {
      MutexLock lock(&mutex_);
      tries_.push_back({until, std::this_thread::get_id()});
      if (until == absl::InfinitePast()) return result_;
    }
    waited_for_.Open();
    latch_.Await();
    MutexLock lock(&mutex_);
    return result_;
  }

  bool begun_ = false;
  Latch latch_;
  Latch waited_for_;
  mutable Mutex mutex_;
  std::optional<absl::Status> result_ ABSL_GUARDED_BY(mutex_);
  std::vector<Try> tries_ ABSL_GUARDED_BY(mutex_);
};

TEST(WorkTest, AThreadThatWaitsForItCounts) {
  const auto waits = std::make_shared<WaitCount>();
  bool counted = false;
  WorkPtr work;
  work = Work::Assisted([&](absl::Time until) {
    counted = waits->any();
    if (until > absl::InfinitePast()) work->Complete(absl::OkStatus());
  });
  work->CountWaitsIn(waits);
  EXPECT_FALSE(work->Done());
  EXPECT_FALSE(counted) << "it only asks";
  EXPECT_OK(work->Wait(kSoon));
  EXPECT_TRUE(counted);
  EXPECT_FALSE(waits->any());
  EXPECT_EQ(waits->ended(), 1);
}

TEST(WorkTest, AWaitThatTakesTooLongGoesOn) {
  const auto waits = std::make_shared<WaitCount>();
  Work work;
  work.CountWaitsIn(waits);
  EXPECT_FALSE(work.Wait(absl::ZeroDuration()).ok());
  EXPECT_EQ(waits->ended(), 0);
}

TEST(AssistedTest, TheWaitingThreadEndsIt) {
  Executor executor([](const absl::Status&) {});
  Errand errand;
  const WorkPtr work = errand.Begin(executor);
  ASSERT_NE(work, nullptr);
  EXPECT_TRUE(errand.begun());
  EXPECT_THAT(errand.tries(), IsEmpty());
  errand.Finish(absl::InvalidArgumentError("no such root"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(work->Wait(kSoon),
                StatusIs(absl::StatusCode::kInvalidArgument, "no such root"));
  }
  const auto tries = errand.tries();
  ASSERT_EQ(tries.size(), 1u);
  EXPECT_EQ(tries[0].thread, std::this_thread::get_id());
  EXPECT_LT(tries[0].until, absl::InfiniteFuture());
}

TEST(AssistedTest, TheNextOneBeginsOnceItHasEnded) {
  Executor executor([](const absl::Status&) {});
  for (int i = 0; i < 3; ++i) {
    Errand errand;
    const WorkPtr work = errand.Begin(executor);
    ASSERT_NE(work, nullptr);
    Errand second;
    EXPECT_EQ(second.Begin(executor), nullptr);
    EXPECT_FALSE(second.begun());
    errand.Finish();
    EXPECT_OK(work->Wait(kSoon));
  }
}

TEST(AssistedTest, DoesNotBeginBeforeEarlierOperationsHaveEnded) {
  Executor executor([](const absl::Status&) {});
  Latch latch;
  const WorkPtr first = executor.RunInOrder([&] {
    latch.Await();
    return absl::OkStatus();
  });
  Errand errand;
  EXPECT_EQ(errand.Begin(executor), nullptr);
  EXPECT_FALSE(errand.begun());
  latch.Open();
  EXPECT_OK(first->Wait(kSoon));
}

// A caller that does not wait tries once, and hands it to the executor.
void CheckHandOver(const std::function<void(Work&)>& ask, absl::Time until) {
  Executor executor([](const absl::Status&) {});
  Errand errand;
  const WorkPtr work = errand.Begin(executor);
  ASSERT_NE(work, nullptr);
  ask(*work);
  ASSERT_TRUE(errand.AwaitWaiter());
  const auto tries = errand.tries();
  ASSERT_EQ(tries.size(), 2u);
  EXPECT_EQ(tries[0].until, until);
  EXPECT_EQ(tries[0].thread, std::this_thread::get_id());
  EXPECT_EQ(tries[1].until, absl::InfiniteFuture());
  EXPECT_NE(tries[1].thread, std::this_thread::get_id());
  errand.Finish();
  EXPECT_OK(work->Wait(kSoon));
  EXPECT_EQ(errand.tries().size(), 2u);
}

TEST(AssistedTest, DoneHandsItToTheExecutor) {
  CheckHandOver([](Work& work) { EXPECT_FALSE(work.Done()); },
                absl::InfinitePast());
}

TEST(AssistedTest, OnDoneHandsItToTheExecutorThatCallsBack) {
  Latch called;
  CheckHandOver(
      [&](Work& work) {
        work.OnDone([&](const absl::Status& status) {
          EXPECT_OK(status);
          called.Open();
        });
      },
      absl::InfinitePast());
  EXPECT_TRUE(called.Await());
}

TEST(AssistedTest, AskingWithoutWaitingEndsWhatCanEnd) {
  Executor executor([](const absl::Status&) {});
  for (const bool by_callback : {false, true}) {
    Errand errand;
    const WorkPtr work = errand.Begin(executor);
    ASSERT_NE(work, nullptr);
    errand.Finish();
    bool called = false;
    if (by_callback) {
      work->OnDone([&](const absl::Status&) { called = true; });
    }
    EXPECT_TRUE(work->Done());
    EXPECT_EQ(called, by_callback);
    EXPECT_EQ(errand.tries().size(), 1u);
  }
}

TEST(AssistedTest, AWaitThatTimesOutHandsItToTheExecutor) {
  Executor executor([](const absl::Status&) {});
  Latch latch;
  std::atomic<int> tries{0};
  const WorkPtr work = executor.TryRunAssisted(
      [] {},
      [&](absl::Time until) -> std::optional<absl::Status> {
        ++tries;
        if (until != absl::InfiniteFuture()) return std::nullopt;
        latch.Await();
        return absl::OkStatus();
      });
  EXPECT_THAT(work->Wait(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("")));
  latch.Open();
  EXPECT_OK(work->Wait(kSoon));
  EXPECT_EQ(tries.load(), 2);
}

TEST(AssistedTest, AWaitThatTimesOutKeepsItsPlace) {
  Executor executor([](const absl::Status&) {});
  Latch waiting;
  Latch give_up;
  std::vector<int> order;
  const WorkPtr work = executor.TryRunAssisted(
      [] {},
      [&](absl::Time until) -> std::optional<absl::Status> {
        if (until == absl::InfiniteFuture()) {
          order.push_back(0);
          return absl::OkStatus();
        }
        waiting.Open();
        give_up.Await();
        return std::nullopt;
      });
  std::thread waiter([&] { EXPECT_OK(work->Wait(kSoon)); });
  ASSERT_TRUE(waiting.Await());
  const WorkPtr later = executor.RunInOrder([&] {
    order.push_back(1);
    return absl::OkStatus();
  });
  give_up.Open();
  EXPECT_OK(later->Wait(kSoon));
  waiter.join();
  EXPECT_THAT(order, ElementsAre(0, 1));
}

TEST(AssistedTest, LaterOperationsTakeItUpAndRunAfterIt) {
  Executor executor([](const absl::Status&) {});
  Errand errand;
  const WorkPtr work = errand.Begin(executor);
  ASSERT_NE(work, nullptr);
  bool ended = false;
  const WorkPtr later = executor.RunInOrder([&] {
    EXPECT_TRUE(ended);
    return absl::OkStatus();
  });
  // No thread waits for it, and yet it goes on.
  ASSERT_TRUE(errand.AwaitWaiter());
  EXPECT_FALSE(later->Done());
  ended = true;
  errand.Finish();
  EXPECT_OK(later->Wait(kSoon));
  EXPECT_TRUE(work->Done());
}

TEST(AssistedTest, AWaiterThatTimesOutAfterTheStopWaitsForTheEnd) {
  Latch waiting;
  Latch give_up;
  Latch asked_again;
  // Until it returns, the operation may use the caller's memory.
  Executor executor([&](const absl::Status&) {
    give_up.Open();
    EXPECT_TRUE(asked_again.Await());
  });
  const WorkPtr work = executor.TryRunAssisted(
      [] {},
      [&](absl::Time until) -> std::optional<absl::Status> {
        if (until == absl::InfiniteFuture()) {
          asked_again.Open();
          return absl::AbortedError("woken");
        }
        waiting.Open();
        give_up.Await();
        return std::nullopt;
      });
  std::thread waiter([&] {
    EXPECT_THAT(work->Wait(kSoon),
                StatusIs(absl::StatusCode::kAborted, "enough"));
  });
  ASSERT_TRUE(waiting.Await());
  executor.Abort("enough");
  waiter.join();
}

TEST(AssistedTest, LaterOperationsDoNotRunBesideAWaiter) {
  Executor executor([](const absl::Status&) {});
  Errand errand;
  const WorkPtr work = errand.Begin(executor);
  ASSERT_NE(work, nullptr);
  std::thread waiter([&] { EXPECT_OK(work->Wait(kSoon)); });
  ASSERT_TRUE(errand.AwaitWaiter());
  std::vector<int> order;
  std::vector<WorkPtr> later;
  for (int i = 0; i < 3; ++i) {
    later.push_back(executor.RunInOrder([&order, &work, i] {
      EXPECT_TRUE(work->Done());
      order.push_back(i);
      return absl::OkStatus();
    }));
  }
  EXPECT_FALSE(later[0]->Done());
  // Another one who waits for it leaves it to the first.
  std::thread second([&] { EXPECT_OK(work->Wait(kSoon)); });
  errand.Finish();
  EXPECT_OK(later[2]->Wait(kSoon));
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
  waiter.join();
  second.join();
  EXPECT_EQ(errand.tries().size(), 1u);
}

TEST(AssistedTest, ManyOperationsOfBothKindsKeepTheirOrder) {
  Executor executor([](const absl::Status&) {});
  std::vector<int> order;  // written by one operation at a time
  std::vector<int> expected;
  WorkPtr last;
  for (int i = 0; i < 300; ++i) {
    expected.push_back(i);
    WorkPtr work;
    if (i % 3 != 0) {
      work = executor.TryRunAssisted([] {},
                                     [&order, i](absl::Time) {
                                       order.push_back(i);
                                       return absl::OkStatus();
                                     });
    }
    if (work == nullptr) {
      work = executor.RunInOrder([&order, i] {
        order.push_back(i);
        return absl::OkStatus();
      });
    }
    if (i % 7 == 0) {
      EXPECT_OK(work->Wait(kSoon));
    }
    last = work;
  }
  EXPECT_OK(last->Wait(kSoon));
  EXPECT_EQ(order, expected);
}

TEST(AssistedTest, AFailureEndsAllThatComesLater) {
  std::atomic<int> woken{0};
  Executor executor([&](const absl::Status&) { ++woken; });
  Errand errand;
  const WorkPtr work = errand.Begin(executor);
  ASSERT_NE(work, nullptr);
  errand.Finish(absl::UnavailableError("rank 1 is gone"));
  EXPECT_THAT(work->Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 is gone"));
  Errand next;
  const WorkPtr refused = next.Begin(executor);
  ASSERT_NE(refused, nullptr);
  EXPECT_THAT(refused->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted,
                       "an earlier operation failed: rank 1 is gone"));
  EXPECT_FALSE(next.begun());
  EXPECT_EQ(woken.load(), 1);
}

TEST(AssistedTest, AbortEndsOperationsThatNoThreadHasTaken) {
  Executor executor([](const absl::Status&) {});
  Errand errand;
  const WorkPtr work = errand.Begin(executor);
  ASSERT_NE(work, nullptr);
  executor.Abort("the member left");
  EXPECT_THAT(work->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "the member left"));
  EXPECT_THAT(errand.tries(), IsEmpty());
}

TEST(AssistedTest, AbortWakesTheWaiterWithTheReason) {
  Errand errand;
  Executor executor(
      [&](const absl::Status&) { errand.Finish(absl::AbortedError("woken")); });
  const WorkPtr work = errand.Begin(executor);
  ASSERT_NE(work, nullptr);
  std::thread waiter([&] {
    EXPECT_THAT(work->Wait(kSoon),
                StatusIs(absl::StatusCode::kAborted, "the member left"));
  });
  ASSERT_TRUE(errand.AwaitWaiter());
  const WorkPtr later =
      executor.RunInOrder([] { return absl::InternalError("it ran"); });
  executor.Abort("the member left");
  EXPECT_THAT(later->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "the member left"));
  waiter.join();
}

TEST(AssistedTest, DestructionWaitsForTheWaiter) {
  Errand errand;
  std::atomic<bool> woken{false};
  auto executor = std::make_unique<Executor>([&](const absl::Status&) {
    woken = true;
    errand.Finish(absl::AbortedError("woken"));
  });
  const WorkPtr work = errand.Begin(*executor);
  ASSERT_NE(work, nullptr);
  std::thread waiter([&] {
    EXPECT_THAT(work->Wait(kSoon),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("destroyed")));
    EXPECT_TRUE(woken.load());
  });
  ASSERT_TRUE(errand.AwaitWaiter());
  executor.reset();
  EXPECT_TRUE(work->Done());
  waiter.join();
}

TEST(AssistedTest, WorkWithoutAWaiterOutlivesItsExecutor) {
  Errand errand;
  auto executor = std::make_unique<Executor>([](const absl::Status&) {});
  const WorkPtr work = errand.Begin(*executor);
  ASSERT_NE(work, nullptr);
  executor.reset();
  EXPECT_TRUE(work->Done());
  EXPECT_THAT(work->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("destroyed")));
  EXPECT_THAT(errand.tries(), IsEmpty());
}

}  // namespace
}  // namespace coxswain
