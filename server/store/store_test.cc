#include "server/store/key_value_store.h"

#include <atomic>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "server/state/direct_writer.h"
#include "server/state/group_commit.h"
#include "server/state/memory_state_store.h"
#include "server/store/store_test_calls.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

class StoreTest : public testing::Test {
 protected:
  StoreTest() : store_(MakeLimits(), &clock_, &writer_) {}

  static StoreLimits MakeLimits() {
    StoreLimits limits;
    limits.max_value_bytes = 64;
    limits.max_keys = 8;
    limits.max_bytes = 200;
    limits.max_total_bytes = 500;
    limits.max_waiting_calls = 4;
    limits.max_watches = 2;
    limits.max_wait_keys = 3;
    limits.max_remembered = 4;
    return limits;
  }

  // A fence of a new request.
  Fence NewFence(int64_t generation = 1) {
    Fence fence;
    fence.job = "job";
    fence.generation = Generation(generation);
    fence.incarnation = Incarnation(7);
    fence.request_id = ++next_request_;
    return fence;
  }
  absl::StatusOr<std::string> GetNow(const std::string& key) {
    return server::GetNow(&store_, NewFence(), key);
  }

  FakeClock clock_;
  MemoryStateStore state_;
  DirectWriter writer_{&state_};
  KeyValueStore store_;
  std::atomic<uint64_t> next_request_{0};
};

TEST_F(StoreTest, GetReadsWhatWasSet) {
  ASSERT_OK(Set(&store_, NewFence(), "key", "one"));
  ASSERT_OK(Set(&store_, NewFence(), "key", "two"));
  EXPECT_EQ(GetNow("key").value_or("missing"), "two");
}

TEST_F(StoreTest, GetWithoutTimeoutAnswersNotFoundAtOnce) {
  EXPECT_THAT(GetNow("key"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"key\"")));
}

TEST_F(StoreTest, GetWakesWhenTheKeyIsSet) {
  std::optional<absl::StatusOr<std::string>> answer;
  EXPECT_NE(store_.Get(NewFence(), "key", absl::Seconds(5),
                       [&](absl::StatusOr<std::string> v) { answer = v; }),
            0);
  EXPECT_FALSE(answer.has_value());
  ASSERT_OK(Set(&store_, NewFence(), "key", "value"));
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->value_or("missing"), "value");
}

TEST_F(StoreTest, ACallWaitsForTheLimitAtMost) {
  std::optional<absl::Status> answer;
  store_.Wait(NewFence(), {"a"}, absl::InfiniteDuration(),
              [&](absl::Status status) { answer = status; });
  clock_.Advance(StoreLimits().max_timeout - absl::Milliseconds(1));
  store_.Tick(clock_.Now());
  EXPECT_FALSE(answer.has_value());
  clock_.Advance(absl::Milliseconds(1));
  store_.Tick(clock_.Now());
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(*answer, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                HasSubstr("\"a\"")));
}

TEST_F(StoreTest, WaitNamesTheKeysThatDidNotComeByTheDeadline) {
  std::optional<absl::Status> answer;
  store_.Wait(NewFence(), {"a", "b", "c"}, absl::Seconds(5),
              [&](absl::Status status) { answer = status; });
  ASSERT_OK(Set(&store_, NewFence(), "b", ""));
  clock_.Advance(absl::Milliseconds(4999));
  store_.Tick(clock_.Now());
  EXPECT_FALSE(answer.has_value());
  clock_.Advance(absl::Milliseconds(1));
  store_.Tick(clock_.Now());
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(*answer, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                HasSubstr("\"a\", \"c\"")));
}

TEST_F(StoreTest, CountsTheKeysThatBeginWithAPrefix) {
  const auto count = [this](absl::string_view prefix) {
    return store_.CountKeys(NewFence(), prefix).value_or(-1);
  };
  EXPECT_EQ(count(""), 0);
  for (const char* key : {"a", "a/1", "a/2", "a0", "b/1"}) {
    ASSERT_OK(Set(&store_, NewFence(), key, "value"));
  }
  ASSERT_OK(Set(&store_, NewFence(), "a/1", "another"));
  EXPECT_EQ(count(""), 5);
  EXPECT_EQ(count("a/"), 2);
  EXPECT_EQ(count("b/1"), 1);
  EXPECT_EQ(count("c"), 0);
  ASSERT_OK(DeleteKey(&store_, NewFence(), "a/2"));
  EXPECT_EQ(count("a/"), 1);
  ASSERT_OK(Set(&store_, NewFence(2), "a/3", "of another generation"));
  EXPECT_EQ(count("a/"), 1);
  store_.OnGenerationEnded("job", Generation(1), absl::AbortedError("over"));
  EXPECT_THAT(store_.CountKeys(NewFence(), ""),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("has ended")));
}

TEST_F(StoreTest, WaitNeedsAllKeysAtTheSameTime) {
  std::optional<absl::Status> answer;
  store_.Wait(NewFence(), {"a", "b", "a"}, absl::Seconds(5),
              [&](absl::Status status) { answer = status; });
  ASSERT_OK(Set(&store_, NewFence(), "a", ""));
  ASSERT_OK(DeleteKey(&store_, NewFence(), "a"));
  ASSERT_OK(Set(&store_, NewFence(), "b", ""));
  EXPECT_FALSE(answer.has_value());
  ASSERT_OK(Set(&store_, NewFence(), "a", ""));
  ASSERT_TRUE(answer.has_value());
  EXPECT_OK(*answer);
}

TEST_F(StoreTest, CancelAnswersOnceAndForgets) {
  int answers = 0;
  const auto call = store_.Get(NewFence(), "key", absl::Seconds(5),
                               [&](absl::StatusOr<std::string> value) {
                                 ++answers;
                                 EXPECT_EQ(value.status().code(),
                                           absl::StatusCode::kCancelled);
                               });
  store_.Cancel(call);
  store_.Cancel(call);
  ASSERT_OK(Set(&store_, NewFence(), "key", "value"));
  EXPECT_EQ(answers, 1);
}

TEST_F(StoreTest, AddCountsFromZeroAndBelow) {
  EXPECT_EQ(Add(&store_, NewFence(), "n", 5).value_or(-1), 5);
  EXPECT_EQ(Add(&store_, NewFence(), "n", -7).value_or(-1), -2);
  EXPECT_EQ(GetNow("n").value_or("missing"), "-2");
}

TEST_F(StoreTest, AddRefusesOverflowAndText) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  ASSERT_OK(Add(&store_, NewFence(), "n", kMax));
  EXPECT_THAT(Add(&store_, NewFence(), "n", 1),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("does not fit 64 bits")));
  EXPECT_EQ(Add(&store_, NewFence(), "n", 0).value_or(-1), kMax);
  ASSERT_OK(Set(&store_, NewFence(), "text", "12x"));
  EXPECT_THAT(Add(&store_, NewFence(), "text", 1),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("not a decimal number")));
}

TEST_F(StoreTest, CompareSetSwapsOnlyWhatWasExpected) {
  EXPECT_THAT(CompareSet(&store_, NewFence(), "k", "old", "new"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"k\"")));
  auto result = CompareSet(&store_, NewFence(), "k", "", "one");
  ASSERT_OK(result);
  EXPECT_TRUE(result->swapped);
  result = CompareSet(&store_, NewFence(), "k", "other", "two");
  ASSERT_OK(result);
  EXPECT_FALSE(result->swapped);
  EXPECT_EQ(result->value, "one");
  result = CompareSet(&store_, NewFence(), "k", "one", "two");
  ASSERT_OK(result);
  EXPECT_TRUE(result->swapped);
  EXPECT_EQ(result->value, "two");
}

TEST_F(StoreTest, ARepeatedRequestGetsTheFirstAnswerAndChangesNothing) {
  const Fence add = NewFence();
  EXPECT_EQ(Add(&store_, add, "n", 3).value_or(-1), 3);
  EXPECT_EQ(Add(&store_, add, "n", 3).value_or(-1), 3);
  EXPECT_EQ(GetNow("n").value_or("missing"), "3");

  const Fence swap = NewFence();
  ASSERT_OK(CompareSet(&store_, swap, "k", "", "mine"));
  ASSERT_OK(Set(&store_, NewFence(), "k", "later"));
  const auto again = CompareSet(&store_, swap, "k", "", "mine");
  ASSERT_OK(again);
  EXPECT_TRUE(again->swapped);

  const Fence set = NewFence();
  ASSERT_OK(Set(&store_, set, "s", "old"));
  ASSERT_OK(DeleteKey(&store_, NewFence(), "s"));
  ASSERT_OK(Set(&store_, set, "s", "old"));
  EXPECT_FALSE(GetNow("s").ok());

  Fence other_process = add;
  other_process.incarnation = Incarnation(8);
  EXPECT_EQ(Add(&store_, other_process, "n", 3).value_or(-1), 6);
}

TEST_F(StoreTest, ARepeatedDeleteGetsTheFirstAnswerAndDeletesNoNewKey) {
  ASSERT_OK(Set(&store_, NewFence(), "key", "old"));
  const Fence fence = NewFence();
  EXPECT_EQ(DeleteKey(&store_, fence, "key").value_or(false), true);
  ASSERT_OK(Set(&store_, NewFence(), "key", "new"));
  EXPECT_EQ(DeleteKey(&store_, fence, "key").value_or(false), true);
  EXPECT_EQ(GetNow("key").value_or("missing"), "new");
  Fence nameless = NewFence();
  nameless.request_id = 0;
  EXPECT_THAT(
      DeleteKey(&store_, nameless, "key"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("request_id")));
}

TEST_F(StoreTest, AllGenerationsTogetherAreBounded) {
  const std::string value(60, 'v');
  for (int generation = 1; generation <= 4; ++generation) {
    ASSERT_OK(Set(&store_, NewFence(generation), "k", value));
    ASSERT_OK(Set(&store_, NewFence(generation), "l", value));
  }
  EXPECT_THAT(Set(&store_, NewFence(5), "k", value),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_total_bytes")));
  EXPECT_OK(Set(&store_, NewFence(1), "k", "small"));
  EXPECT_OK(DeleteKey(&store_, NewFence(1), "l"));
  EXPECT_OK(Set(&store_, NewFence(5), "k", value));
  EXPECT_OK(Set(&store_, NewFence(5), "l", value));
  EXPECT_FALSE(Set(&store_, NewFence(5), "m", value).ok());
  store_.OnGenerationEnded("job", Generation(2), absl::AbortedError("over"));
  EXPECT_OK(Set(&store_, NewFence(5), "m", value));
}

TEST_F(StoreTest, RememberedAnswersAreBounded) {
  const Fence first = NewFence();
  ASSERT_OK(Add(&store_, first, "n", 1));
  for (int i = 0; i < 4; ++i) ASSERT_OK(Add(&store_, NewFence(), "n", 1));
  EXPECT_EQ(Add(&store_, first, "n", 1).value_or(-1), 6);
}

TEST_F(StoreTest, AChangeWithoutRequestIdIsRefused) {
  Fence fence = NewFence();
  fence.request_id = 0;
  EXPECT_THAT(
      Add(&store_, fence, "n", 1),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("request_id")));
}

TEST_F(StoreTest, LimitsAreNamedInTheError) {
  const auto exhausted = [](const char* limit) {
    return StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(limit));
  };
  EXPECT_THAT(Set(&store_, NewFence(), std::string(1025, 'k'), ""),
              exhausted("max_key_bytes"));
  EXPECT_THAT(Set(&store_, NewFence(), "k", std::string(65, 'v')),
              exhausted("max_value_bytes"));
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(Set(&store_, NewFence(), absl::StrCat(i), std::string(64, 'v')));
  }
  EXPECT_THAT(Set(&store_, NewFence(), "k", std::string(64, 'v')),
              exhausted("max_bytes"));
  for (int i = 0; i < 8; ++i) {
    ASSERT_OK(Set(&store_, NewFence(), absl::StrCat(i), ""));
  }
  EXPECT_THAT(Set(&store_, NewFence(), "k", ""), exhausted("max_keys"));
  absl::Status waited;
  store_.Wait(NewFence(), {"a", "b", "c", "d"}, absl::Seconds(1),
              [&](absl::Status status) { waited = status; });
  EXPECT_THAT(waited, exhausted("max_wait_keys"));
  for (int i = 0; i < 5; ++i) {
    store_.Wait(NewFence(), {"missing"}, absl::Seconds(1),
                [&](absl::Status status) { waited = status; });
  }
  EXPECT_THAT(waited, exhausted("max_waiting_calls"));
  ASSERT_OK(store_.OpenWatch(NewFence(), "k"));
  ASSERT_OK(store_.OpenWatch(NewFence(), "k"));
  EXPECT_THAT(store_.OpenWatch(NewFence(), "k"), exhausted("max_watches"));
  // Answers what waits while its locals live.
  store_.OnGenerationEnded("job", Generation(1), absl::AbortedError("over"));
}

TEST_F(StoreTest, AWatchSeesTheValueEachChangeAndTheDeletion) {
  ASSERT_OK(Set(&store_, NewFence(), "k", "one"));
  ASSERT_OK_AND_ASSIGN(const auto watch, store_.OpenWatch(NewFence(), "k"));
  std::vector<std::string> seen;
  const auto record = [&](absl::StatusOr<StoreEvent> event) {
    seen.push_back(!event.ok()      ? std::string(event.status().message())
                   : event->deleted ? "(deleted)"
                                    : event->value);
  };
  store_.NextEvent(watch, record);
  store_.NextEvent(watch, record);
  EXPECT_THAT(seen, testing::ElementsAre("one"));
  ASSERT_OK(Set(&store_, NewFence(), "k", "two"));
  store_.NextEvent(watch, record);
  ASSERT_OK(DeleteKey(&store_, NewFence(), "k"));
  EXPECT_THAT(seen, testing::ElementsAre("one", "two", "(deleted)"));
  store_.NextEvent(watch, record);
  store_.CloseWatch(watch);
  EXPECT_THAT(seen.back(), HasSubstr("closed"));
}

TEST_F(StoreTest, ASlowWatchGetsTheNewestValueOnly) {
  ASSERT_OK_AND_ASSIGN(const auto watch, store_.OpenWatch(NewFence(), "k"));
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK(Set(&store_, NewFence(), "k", absl::StrCat(i)));
  }
  std::vector<std::string> seen;
  const auto record = [&](absl::StatusOr<StoreEvent> event) {
    seen.push_back(event.ok() ? event->value : "error");
  };
  store_.NextEvent(watch, record);
  store_.NextEvent(watch, record);
  EXPECT_THAT(seen, testing::ElementsAre("99"));
  store_.OnGenerationEnded("job", Generation(1), absl::AbortedError("over"));
}

TEST_F(StoreTest, TheEndOfAGenerationAnswersEveryoneAndDropsItsKeys) {
  ASSERT_OK(Set(&store_, NewFence(1), "old", "x"));
  std::optional<absl::Status> waited;
  store_.Wait(NewFence(1), {"k"}, absl::Seconds(5),
              [&](absl::Status status) { waited = status; });
  ASSERT_OK_AND_ASSIGN(const auto watch, store_.OpenWatch(NewFence(1), "k"));
  std::optional<absl::Status> watched;
  store_.NextEvent(watch, [&](absl::StatusOr<StoreEvent> event) {
    watched = event.status();
  });
  store_.OnGenerationEnded("job", Generation(1),
                           absl::AbortedError("rank 1 is lost"));
  const auto aborted =
      StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1 is lost"));
  ASSERT_TRUE(waited.has_value());
  EXPECT_THAT(*waited, aborted);
  ASSERT_TRUE(watched.has_value());
  EXPECT_THAT(*watched, aborted);
  EXPECT_EQ(store_.scope_count(), 0);
}

TEST_F(StoreTest, ALateCallBringsNoEndedScopeBack) {
  store_.OnGenerationEnded("job", Generation(2), absl::AbortedError("over"));
  EXPECT_THAT(Set(&store_, NewFence(2), "k", "v"),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("has ended")));
  EXPECT_EQ(store_.scope_count(), 0);
  EXPECT_OK(Set(&store_, NewFence(3), "k", "v"));
}

TEST_F(StoreTest, GenerationsDoNotSeeEachOther) {
  ASSERT_OK(Set(&store_, NewFence(2), "k", "of 2"));
  EXPECT_FALSE(GetNow("k").ok());
}

TEST(StoreContentionTest, SixteenThreadsAddExactlySwapOnceAndAllWake) {
  constexpr int kThreads = 16;
  constexpr int kAdds = 500;
  FakeClock clock;
  std::atomic<int> woken{0};
  std::atomic<int> winners{0};
  MemoryStateStore state;
  GroupCommit writer(&state);
  KeyValueStore store(StoreLimits(), &clock, &writer);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Fence fence;
      fence.job = "job";
      fence.generation = Generation(1);
      fence.incarnation = Incarnation(t + 1);
      store.Get(fence, "ready", absl::Seconds(60),
                [&](absl::StatusOr<std::string> value) {
                  if (value.value_or("") == "go") ++woken;
                });
      for (int i = 0; i < kAdds; ++i) {
        ++fence.request_id;
        EXPECT_OK(Add(&store, fence, "n", 1));
        EXPECT_OK(Add(&store, fence, "n", 1));  // the same request again
      }
      ++fence.request_id;
      const auto swap =
          CompareSet(&store, fence, "leader", "", absl::StrCat("thread ", t));
      if (swap.ok() && swap->swapped) ++winners;
      ++fence.request_id;
      if (t == 0) {
        EXPECT_OK(Set(&store, fence, "ready", "go"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Fence fence;
  fence.job = "job";
  fence.generation = Generation(1);
  fence.request_id = 1;
  EXPECT_EQ(Add(&store, fence, "n", 0).value_or(-1), kThreads * kAdds);
  EXPECT_EQ(winners, 1);
  EXPECT_EQ(woken, kThreads);
}

}  // namespace
}  // namespace coxswain::server
