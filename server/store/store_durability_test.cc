// What the store keeps across a crash of the coordinator, and when it speaks
// of it: a second one on the records that the old one has left.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "server/state/direct_writer.h"
#include "server/state/group_commit.h"
#include "server/state/memory_state_store.h"
#include "server/state/quarantine.h"
#include "server/state/state_writer.h"
#include "server/store/key_value_store.h"
#include "server/store/store_test_calls.h"
#include "tests/conformance/scripted_state_store.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

constexpr char kTable[] = "store/1";

Fence FenceOf(uint64_t request, int64_t generation = 1) {
  Fence fence;
  fence.job = "job";
  fence.generation = Generation(generation);
  fence.incarnation = Incarnation(7);
  fence.request_id = request;
  return fence;
}

GenerationResumed Running(int64_t generation) {
  GenerationResumed resumed;
  resumed.begin.job = "job";
  resumed.begin.generation = Generation(generation);
  return resumed;
}

// A coordinator's store on records that outlive it.
template <typename Writer>
struct Coordinator {
  explicit Coordinator(StateStore* state, const StoreLimits& limits = {})
      : writer(state), store(limits, &clock, &writer) {}

  FakeClock clock;
  Writer writer;
  KeyValueStore store;
};

// An operation whose answer is a text.
using Operation = std::function<std::string(KeyValueStore*)>;

std::string Text(const absl::Status& status) {
  return status.ok() ? "ok" : absl::StatusCodeToString(status.code());
}

// Builds on what is there: each is to be done exactly once, in this order.
std::vector<Operation> Script() {
  std::vector<Operation> script;
  const auto add =
      [&](const std::function<std::string(KeyValueStore*, Fence)>& f) {
        const Fence fence = FenceOf(script.size() + 1);
        script.emplace_back(
            [f, fence](KeyValueStore* store) { return f(store, fence); });
      };
  for (int round = 0; round < 3; ++round) {
    const std::string value = absl::StrCat("value", round);
    add([=](KeyValueStore* store, const Fence& fence) {
      return Text(Set(store, fence, "key", value));
    });
    add([=](KeyValueStore* store, const Fence& fence) {
      const auto sum = Add(store, fence, "count", round + 1);
      return sum.ok() ? absl::StrCat(*sum) : Text(sum.status());
    });
    add([=](KeyValueStore* store, const Fence& fence) {
      const auto r = CompareSet(store, fence, "leader", "", value);
      return r.ok() ? absl::StrCat(r->swapped, r->value) : Text(r.status());
    });
    add([=](KeyValueStore* store, const Fence& fence) {
      const auto existed = DeleteKey(store, fence, "key");
      return existed.ok() ? absl::StrCat(*existed) : Text(existed.status());
    });
    add([=](KeyValueStore* store, const Fence& fence) {
      const auto existed =
          DeleteKey(store, fence, round == 1 ? "leader" : "no");
      return existed.ok() ? absl::StrCat(*existed) : Text(existed.status());
    });
  }
  return script;
}

std::vector<std::string> RunScript(KeyValueStore* store) {
  std::vector<std::string> answers;
  for (const Operation& operation : Script()) {
    answers.push_back(operation(store));
  }
  return answers;
}

std::string KeysOf(KeyValueStore* store) {
  std::string all;
  for (const char* key : {"key", "count", "leader", "no"}) {
    absl::StrAppend(&all, key, "=",
                    GetNow(store, FenceOf(0), key).value_or("missing"), " ");
  }
  return all;
}

// Callers ask again, those without an answer and the others.
TEST(StoreDurabilityTest, ACrashBetweenAnyTwoOperationsLosesAndRepeatsNothing) {
  ScriptedStateStore untouched;
  Coordinator<DirectWriter> reference(&untouched);
  const std::vector<std::string> expected = RunScript(&reference.store);
  for (int crash = 0; crash <= static_cast<int>(expected.size()); ++crash) {
    SCOPED_TRACE(crash);
    ScriptedStateStore state;
    {
      Coordinator<DirectWriter> first(&state);
      state.CrashAfter(crash);
      const std::vector<std::string> answers = RunScript(&first.store);
      for (int i = 0; i < static_cast<int>(answers.size()); ++i) {
        EXPECT_EQ(answers[i], i < crash ? expected[i] : "UNAVAILABLE") << i;
      }
    }
    state.CrashAfter(-1);
    for (int restart = 0; restart < 2; ++restart) {
      Coordinator<DirectWriter> later(&state);
      ASSERT_OK(later.store.OnResume({Running(1)}));
      EXPECT_EQ(RunScript(&later.store), expected);
      EXPECT_EQ(KeysOf(&later.store), KeysOf(&reference.store));
    }
  }
}

// The same with many at once: the counters show whether each counted once.
TEST(StoreDurabilityTest, ACrashWhileManyAddLosesAndRepeatsNothing) {
  constexpr int kThreads = 8;
  constexpr int kAdds = 40;
  const auto run = [](KeyValueStore* store) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([store, t] {
        for (int i = 0; i < kAdds; ++i) {
          Add(store, FenceOf(1 + t * kAdds + i), absl::StrCat("n", i % 2), 1)
              .status()
              .IgnoreError();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  for (int crash = 1; crash < 100; crash += 7) {
    ScriptedStateStore state;
    {
      Coordinator<GroupCommit> first(&state);
      state.CrashAfter(crash);
      run(&first.store);
    }
    state.CrashAfter(-1);
    Coordinator<GroupCommit> second(&state);
    ASSERT_OK(second.store.OnResume({Running(1)}));
    run(&second.store);
    for (const char* key : {"n0", "n1"}) {
      EXPECT_EQ(GetNow(&second.store, FenceOf(0), key).value_or("missing"),
                absl::StrCat(kThreads * kAdds / 2));
    }
  }
}

TEST(StoreDurabilityTest, AChangeIsAnsweredAfterItsCommit) {
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state);
  KeyValueStore& store = coordinator.store;
  state.Hold();
  std::atomic<bool> set{false};
  std::atomic<bool> woken{false};
  const PendingAnswer<absl::StatusOr<StoreEvent>> seen;
  store.Get(FenceOf(0), "key", absl::Seconds(60),
            [&](absl::StatusOr<std::string> value) { woken = value.ok(); });
  ASSERT_OK_AND_ASSIGN(const auto watch, store.OpenWatch(FenceOf(0), "key"));
  std::atomic<bool> watched{false};
  store.NextEvent(watch, [&](absl::StatusOr<StoreEvent> e) {
    if (e.ok()) watched = true;
  });
  store.Set(FenceOf(1), "key", "value",
            [&](const absl::Status& status) { set = status.ok(); });
  ASSERT_TRUE(state.WaitForApplies(1));
  EXPECT_FALSE(GetNow(&store, FenceOf(0), "key").ok());
  EXPECT_FALSE(set || woken || watched);
  state.Release();
  WaitUntilWritten(&coordinator.writer);
  EXPECT_TRUE(set && woken && watched);
  EXPECT_EQ(GetNow(&store, FenceOf(0), "key").value_or("missing"), "value");
}

TEST(StoreDurabilityTest, AChangeThatCannotBeWrittenFailsAlone) {
  ScriptedStateStore state;
  Coordinator<DirectWriter> coordinator(&state);
  KeyValueStore& store = coordinator.store;
  ASSERT_OK(Set(&store, FenceOf(1), "bad", "old"));
  bool answered = false;
  store.Get(FenceOf(0), "badly missing", absl::Seconds(60),
            [&](absl::StatusOr<std::string>) { answered = true; });
  state.Refuse("bad");
  const auto unavailable =
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("was not changed"));
  EXPECT_THAT(Set(&store, FenceOf(2), "bad", "new"), unavailable);
  EXPECT_THAT(DeleteKey(&store, FenceOf(3), "bad"), unavailable);
  EXPECT_THAT(Set(&store, FenceOf(4), "badly missing", ""), unavailable);
  EXPECT_FALSE(answered);
  EXPECT_EQ(GetNow(&store, FenceOf(0), "bad").value_or("missing"), "old");
  EXPECT_OK(Set(&store, FenceOf(5), "good", "value"));
  state.RefuseNothing();
  // It was not remembered: the same request is made now.
  EXPECT_OK(Set(&store, FenceOf(2), "bad", "new"));
  EXPECT_EQ(GetNow(&store, FenceOf(0), "bad").value_or("missing"), "new");
  store.OnGenerationEnded("job", Generation(1), absl::AbortedError("over"));
  EXPECT_TRUE(answered);
}

// Its generation is not over: the other coordinator has it.
TEST(StoreDurabilityTest, AStoreThatAnotherOwnsIsUnavailableToTheClient) {
  MemoryStateStore state;
  Coordinator<DirectWriter> coordinator(&state);
  state.FailWrites(absl::AbortedError("another coordinator leads"));
  EXPECT_THAT(Set(&coordinator.store, FenceOf(1), "key", "value"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("another coordinator leads")));
}

TEST(StoreDurabilityTest, AFailedChangeGivesBackWhatItReserved) {
  StoreLimits limits;
  limits.max_keys = 2;
  limits.max_bytes = 20;
  ScriptedStateStore state;
  Coordinator<DirectWriter> coordinator(&state, limits);
  KeyValueStore& store = coordinator.store;
  state.Refuse("bad");
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(Set(&store, FenceOf(i + 1), "bad", "0123456789"),
                StatusIs(absl::StatusCode::kUnavailable, testing::_));
  }
  EXPECT_OK(Set(&store, FenceOf(20), "a", "01234567"));
  EXPECT_OK(Set(&store, FenceOf(21), "b", "01234567"));
  EXPECT_THAT(
      Set(&store, FenceOf(22), "c", ""),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_keys")));
}

// One that waits for a commit which then fails is made on what stands.
TEST(StoreDurabilityTest, NothingBuildsOnAChangeThatFailed) {
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state);
  KeyValueStore& store = coordinator.store;
  const PendingAnswer<absl::StatusOr<int64_t>> first;
  const PendingAnswer<absl::StatusOr<int64_t>> second;
  state.Hold();
  store.Add(FenceOf(1), "n", 100, first);
  ASSERT_TRUE(state.WaitForApplies(1));
  store.Add(FenceOf(2), "n", 1, second);
  state.CrashAfter(0);
  std::atomic<bool> failed{false};
  std::thread mending([&] { failed = !first.Wait().ok(); });
  state.Release();
  mending.join();
  EXPECT_TRUE(failed);
  state.CrashAfter(-1);
  const auto sum = second.Wait();
  if (sum.ok()) {
    EXPECT_EQ(*sum, 1);
  }
  EXPECT_EQ(Add(&store, FenceOf(3), "n", 0).value_or(-1), sum.ok() ? 1 : 0);
}

TEST(StoreDurabilityTest, AThousandSetsAndAHotCounterNeedFewCommits) {
  constexpr int kClients = 1000;
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state);
  KeyValueStore& store = coordinator.store;
  std::atomic<int> answered{0};
  state.Hold();
  for (int i = 0; i < kClients; ++i) {
    store.Set(FenceOf(1 + i), absl::StrCat("key", i), "value",
              [&](const absl::Status& s) { answered += s.ok() ? 1 : 0; });
  }
  std::atomic<int64_t> sums{0};
  for (int i = 0; i < kClients; ++i) {
    store.Add(FenceOf(1 + i), "n", 1,
              [&](absl::StatusOr<int64_t> sum) { sums += sum.value_or(-1); });
  }
  state.Release();
  // The counter's later commits each begin in the callback of one before.
  for (int i = 0; i < 2 * kClients / 80; ++i) {
    WaitUntilWritten(&coordinator.writer);
  }
  EXPECT_EQ(answered, kClients);
  EXPECT_EQ(sums, kClients * (kClients + 1) / 2);
  // Two records for each key; the counter's answers in pieces of 80.
  EXPECT_LE(state.applies(), 2 * kClients / 120 + kClients / 80 + 5);
}

TEST(StoreDurabilityTest, RememberedAnswersAreBoundedOnDiskAsWell) {
  StoreLimits limits;
  limits.max_remembered = 4;
  ScriptedStateStore state;
  {
    Coordinator<DirectWriter> first(&state, limits);
    for (int i = 1; i <= 100; ++i) {
      ASSERT_OK(Add(&first.store, FenceOf(i), "n", 1));
    }
    // The key, the answers, and one whose record goes with the next change.
    EXPECT_LE(state.List(kTable)->size(), 1u + 4 + 1);
  }
  Coordinator<DirectWriter> second(&state, limits);
  ASSERT_OK(second.store.OnResume({Running(1)}));
  EXPECT_EQ(Add(&second.store, FenceOf(97), "n", 1).value_or(-1), 97);
  EXPECT_EQ(Add(&second.store, FenceOf(100), "n", 1).value_or(-1), 100);
  EXPECT_EQ(Add(&second.store, FenceOf(96), "n", 1).value_or(-1), 101);
  EXPECT_LE(state.List(kTable)->size(), 1u + 4 + 2);
}

TEST(StoreDurabilityTest, LargeAnswersAreBoundedOnDiskAsWell) {
  StoreLimits limits;
  limits.max_remembered_bytes = 3000;
  ScriptedStateStore state;
  Coordinator<DirectWriter> coordinator(&state, limits);
  KeyValueStore& store = coordinator.store;
  ASSERT_OK(Set(&store, FenceOf(1), "key", std::string(1000, 'v')));
  for (int i = 2; i < 50; ++i) {
    const auto answer = CompareSet(&store, FenceOf(i), "key", "other", "new");
    ASSERT_OK(answer);
    EXPECT_EQ(answer->value.size(), 1000u);
  }
  EXPECT_LE(state.List(kTable)->size(), 6u);
}

TEST(StoreDurabilityTest, TheLargestValuesFitACommit) {
  ScriptedStateStore state;
  Coordinator<DirectWriter> coordinator(&state);
  KeyValueStore& store = coordinator.store;
  const std::string key(StoreLimits().max_key_bytes, 'k');
  const std::string old(StoreLimits().max_value_bytes, 'o');
  const std::string next(StoreLimits().max_value_bytes, 'n');
  ASSERT_OK(Set(&store, FenceOf(1), key, old));
  auto answer = CompareSet(&store, FenceOf(2), key, "other", next);
  ASSERT_OK(answer);
  EXPECT_TRUE(answer->value == old);
  answer = CompareSet(&store, FenceOf(3), key, old, next);
  ASSERT_OK(answer);
  EXPECT_TRUE(answer->swapped && answer->value == next);
}

// Many at once, each of which alone nearly fills a commit.
TEST(StoreDurabilityTest, LargeChangesOfOneKeyDoNotPassTheLimitTogether) {
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state);
  KeyValueStore& store = coordinator.store;
  const std::string large(StoreLimits().max_value_bytes, 'v');
  state.Hold();
  std::atomic<int> good{0};
  for (int i = 1; i <= 12; ++i) {
    if (i % 3 == 0) {
      store.Set(FenceOf(i), "key", large,
                [&](const absl::Status& s) { good += s.ok() ? 1 : 0; });
    } else {
      store.CompareSet(FenceOf(i), "key", "other", large,
                       [&](const absl::StatusOr<CompareSetResult>& result) {
                         good += absl::IsNotFound(result.status()) ? 1 : 0;
                         good += result.ok() ? 1 : 0;
                       });
    }
  }
  state.Release();
  for (int i = 0; i < 13; ++i) WaitUntilWritten(&coordinator.writer);
  EXPECT_EQ(good, 12);
}

TEST(StoreDurabilityTest, ARequestRepeatedWhileItIsCommittedCountsOnce) {
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state);
  KeyValueStore& store = coordinator.store;
  std::vector<PendingAnswer<absl::StatusOr<int64_t>>> answers(4);
  state.Hold();
  for (const auto& answer : answers) store.Add(FenceOf(9), "n", 5, answer);
  state.Release();
  for (const auto& answer : answers) {
    EXPECT_EQ(answer.Wait().value_or(-1), 5);
  }
  EXPECT_EQ(GetNow(&store, FenceOf(0), "n").value_or("missing"), "5");
}

// Who waits for a key sees it, however soon it is deleted.
TEST(StoreDurabilityTest, AKeyThatIsSetAndDeletedAtOnceWakesWaiters) {
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state);
  KeyValueStore& store = coordinator.store;
  const PendingAnswer<absl::StatusOr<std::string>> waiting;
  store.Get(FenceOf(0), "key", absl::Seconds(60), waiting);
  state.Hold();
  store.DeleteKey(FenceOf(1), "key", [](absl::StatusOr<bool>) {});
  store.Set(FenceOf(2), "key", "value", [](const absl::Status&) {});
  store.DeleteKey(FenceOf(3), "key", [](absl::StatusOr<bool>) {});
  state.Release();
  for (int i = 0; i < 4; ++i) WaitUntilWritten(&coordinator.writer);
  // The answer is here by now, or never comes.
  store.OnGenerationEnded("job", Generation(1), absl::AbortedError("over"));
  EXPECT_EQ(waiting.Wait().value_or("missing"), "value");
}

TEST(StoreDurabilityTest, ChangesThatWaitForTheDiskAreBounded) {
  StoreLimits limits;
  limits.max_changes = 3;
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state, limits);
  KeyValueStore& store = coordinator.store;
  state.Hold();
  for (int i = 1; i <= 3; ++i) {
    store.Set(FenceOf(i), absl::StrCat(i), "", [](const absl::Status&) {});
  }
  EXPECT_THAT(
      Set(&store, FenceOf(4), "more", ""),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_changes")));
  state.Release();
  WaitUntilWritten(&coordinator.writer);
  EXPECT_OK(Set(&store, FenceOf(4), "more", ""));
}

TEST(StoreDurabilityTest, BytesThatWaitForTheDiskAreBounded) {
  StoreLimits limits;
  limits.max_change_bytes = 100;
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state, limits);
  KeyValueStore& store = coordinator.store;
  state.Hold();
  store.Set(FenceOf(1), "key", std::string(90, 'x'),
            [](const absl::Status&) {});
  EXPECT_THAT(Set(&store, FenceOf(2), "more", std::string(90, 'x')),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_change_bytes")));
  state.Release();
  WaitUntilWritten(&coordinator.writer);
  EXPECT_OK(Set(&store, FenceOf(2), "more", std::string(90, 'x')));
}

TEST(StoreDurabilityTest, WhatBelongsToNoRunningGenerationIsDropped) {
  ScriptedStateStore state;
  {
    Coordinator<DirectWriter> first(&state);
    for (int generation : {1, 2, 3, 12}) {
      ASSERT_OK(Set(&first.store, FenceOf(1, generation), "key", "value"));
    }
    first.store.OnGenerationEnded("job", Generation(3),
                                  absl::AbortedError("x"));
    ASSERT_OK(state.Put("storeroom", "not", "ours"));
  }
  EXPECT_THAT(*state.Tables("store/"),
              testing::ElementsAre("store/1", "store/12", "store/2"));
  Coordinator<DirectWriter> second(&state);
  ASSERT_OK(second.store.OnResume({Running(2), Running(5)}));
  EXPECT_THAT(*state.Tables(""), testing::ElementsAre("store/2", "storeroom"));
  EXPECT_EQ(second.store.scope_count(), 1u);
  EXPECT_EQ(GetNow(&second.store, FenceOf(0, 2), "key").value_or("missing"),
            "value");
}

TEST(StoreDurabilityTest, TheEndOfAGenerationLeavesNoRecordOfALateCommit) {
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state);
  KeyValueStore& store = coordinator.store;
  ASSERT_OK(Set(&store, FenceOf(1), "before", ""));
  std::vector<PendingAnswer<absl::Status>> answers(3);
  state.Hold();
  store.Set(FenceOf(2), "key", "1", answers[0]);
  ASSERT_TRUE(state.WaitForApplies(2));
  store.Set(FenceOf(3), "key", "2", answers[1]);
  store.Set(FenceOf(4), "other", "3", answers[2]);
  store.OnGenerationEnded("job", Generation(1), absl::AbortedError("over"));
  state.Release();
  for (const auto& answer : answers) {
    EXPECT_THAT(answer.Wait(),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("over")));
  }
  for (int i = 0; i < 3; ++i) WaitUntilWritten(&coordinator.writer);
  EXPECT_THAT(*state.Tables(""), testing::IsEmpty());
}

TEST(StoreDurabilityTest, ACommitThatIsLateForTheEndIsDroppedAsWell) {
  ScriptedStateStore state;
  Coordinator<InterruptedWriter> coordinator(&state);
  coordinator.writer.Interrupt([&] {
    coordinator.store.OnGenerationEnded("job", Generation(1),
                                        absl::AbortedError("over"));
  });
  EXPECT_THAT(Set(&coordinator.store, FenceOf(1), "key", "value"),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("over")));
  EXPECT_THAT(*state.Tables(""), testing::IsEmpty());
}

TEST(StoreDurabilityTest, StoppingAnswersWhatIsBeingCommitted) {
  ScriptedStateStore state;
  GroupCommit writer(&state);
  FakeClock clock;
  auto store = std::make_unique<KeyValueStore>(StoreLimits(), &clock, &writer);
  std::vector<PendingAnswer<absl::Status>> answers(2);
  state.Hold();
  store->Set(FenceOf(1), "key", "1", answers[0]);
  store->Set(FenceOf(2), "key", "2", answers[1]);
  std::thread disk([&] {
    EXPECT_TRUE(state.WaitForApplies(1));
    EXPECT_EQ(answers[1].Wait().code(), absl::StatusCode::kUnavailable);
    state.Release();
  });
  store.reset();
  disk.join();
  EXPECT_EQ(answers[0].Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(state.List(kTable)->size(), 2u);  // It may be asked for again.
}

// And no other generation loses anything.
TEST(StoreDurabilityTest, ARecordThatCannotBeReadGoesIntoQuarantine) {
  for (const std::string& key :
       {std::string("a"), std::string("a12345678"), std::string(""),
        std::string("x"), std::string("k")}) {
    SCOPED_TRACE(key);
    ScriptedStateStore state;
    ASSERT_OK(state.Put(kTable, key, "?"));
    ASSERT_OK(state.Put(kTable, "kgood", "value"));
    ASSERT_OK(state.Put("store/2", "kgood", "value"));
    Coordinator<DirectWriter> coordinator(&state);
    ASSERT_OK(coordinator.store.OnResume({Running(1), Running(2)}));
    ASSERT_OK_AND_ASSIGN(const auto quarantined, ListQuarantined(state));
    ASSERT_EQ(quarantined.size(), 1u);
    EXPECT_EQ(quarantined[0].table, kTable);
    EXPECT_EQ(quarantined[0].key, key);
    EXPECT_EQ(quarantined[0].job, "job");
    EXPECT_EQ(state.List("quarantine")->at(0).second, "?");
    // The membership ends the generation, whose records are of no use.
    EXPECT_EQ(state.List(kTable)->size(), 0u);
    EXPECT_EQ(coordinator.store.scope_count(), 1u);
    coordinator.store.OnGenerationEnded("job", Generation(1),
                                        absl::AbortedError("over"));
    EXPECT_EQ(state.List("store/2")->size(), 1u);
  }
}

}  // namespace
}  // namespace coxswain::server
