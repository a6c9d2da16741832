#ifndef COXSWAIN_TESTS_CONFORMANCE_STATE_STORE_CONFORMANCE_H_
#define COXSWAIN_TESTS_CONFORMANCE_STATE_STORE_CONFORMANCE_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// What every StateStore must do. A store's test instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, StateStoreConformance,
//                            testing::Values(StateStoreMaker{...}));
struct StateStoreMaker {
  std::string name;
  // Returns an empty store, on a medium of its own.
  std::function<std::unique_ptr<StateStore>()> make;
  // Returns the store again, on the medium of one that is closed first; unset:
  // what it holds ends with the object.
  std::function<std::unique_ptr<StateStore>(std::unique_ptr<StateStore>)>
      reopen = nullptr;
};
inline void PrintTo(const StateStoreMaker& maker, std::ostream* os) {
  *os << maker.name;
}

class StateStoreConformance : public testing::TestWithParam<StateStoreMaker> {
 protected:
  StateStoreConformance() : store_(GetParam().make()) {}
  std::unique_ptr<StateStore> store_;
};

TEST_P(StateStoreConformance, ReadsBackWhatWasPut) {
  ASSERT_OK(store_->Put("table", "key", "one"));
  ASSERT_OK(store_->Put("table", "key", "two"));
  EXPECT_EQ(store_->Get("table", "key").value_or("missing"), "two");
}

TEST_P(StateStoreConformance, MissingKeyIsNotFound) {
  ASSERT_OK(store_->Put("table", "key", "value"));
  EXPECT_THAT(
      store_->Get("table", "other"),
      StatusIs(absl::StatusCode::kNotFound, testing::HasSubstr("other")));
  EXPECT_THAT(store_->Get("elsewhere", "key"),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
}

TEST_P(StateStoreConformance, AnyBytesAreKept) {
  std::string bytes("\0\xff'\"\n%/\0", 8);
  for (int byte = 0; byte < 256; ++byte) {
    bytes.push_back(static_cast<char>(byte));
  }
  ASSERT_OK(store_->Put("table", bytes, bytes));
  ASSERT_OK(store_->Put("", "", ""));
  EXPECT_EQ(store_->Get("table", bytes).value_or("missing"), bytes);
  EXPECT_EQ(store_->Get("", "").value_or("missing"), "");
  EXPECT_FALSE(store_->Get("table", "").ok());
  std::string other = "\x01\xff'%_*?[\\";
  ASSERT_OK(store_->Put(other, "key", "value"));
  EXPECT_EQ(store_->Get(other, "key").value_or("missing"), "value");
  ASSERT_OK_AND_ASSIGN(const auto tables, store_->Tables(other));
  EXPECT_THAT(tables, testing::ElementsAre(other));
}

// What comes after the name of a table must not be taken for a part of it.
TEST_P(StateStoreConformance, TablesDoNotReachIntoEachOther) {
  const std::string zero(1, '\0');
  ASSERT_OK(store_->Put("a", "b", "1"));
  ASSERT_OK(store_->Put("ab", "", "2"));
  ASSERT_OK(store_->Put("a/", "b", "3"));
  ASSERT_OK(store_->Put("", "ab", "4"));
  ASSERT_OK(store_->Put("a", zero + "b", "5"));
  EXPECT_EQ(store_->Get("a", "b").value_or("missing"), "1");
  EXPECT_EQ(store_->Get("ab", "").value_or("missing"), "2");
  EXPECT_EQ(store_->Get("", "ab").value_or("missing"), "4");
  ASSERT_OK_AND_ASSIGN(const auto records, store_->List("a"));
  EXPECT_THAT(records, testing::ElementsAre(testing::Pair(zero + "b", "5"),
                                            testing::Pair("b", "1")));
  ASSERT_OK(store_->Apply(StateBatch().DeleteTable("a")));
  ASSERT_OK_AND_ASSIGN(const auto tables, store_->Tables(""));
  EXPECT_THAT(tables, testing::ElementsAre("", "a/", "ab"));
}

TEST_P(StateStoreConformance, NoTableHasAZeroInItsName) {
  const std::string name("ta\0ble", 6);
  const auto invalid =
      StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("zero"));
  EXPECT_THAT(store_->Put(name, "key", "value"), invalid);
  EXPECT_THAT(store_->Apply(StateBatch().DeleteTable(name)), invalid);
}

TEST_P(StateStoreConformance, TablesAreThoseWithRecordsInByteOrder) {
  for (const char* name :
       {"store/2", "store/10", "storf", "stor", "store/\xff"}) {
    ASSERT_OK(store_->Put(name, "a", ""));
    ASSERT_OK(store_->Put(name, "b", ""));
  }
  ASSERT_OK(store_->Put("store/3", "gone", ""));
  ASSERT_OK(store_->Delete("store/3", "gone"));
  ASSERT_OK_AND_ASSIGN(auto tables, store_->Tables("store/"));
  EXPECT_THAT(tables,
              testing::ElementsAre("store/10", "store/2", "store/\xff"));
  ASSERT_OK_AND_ASSIGN(tables, store_->Tables("store/2"));
  EXPECT_THAT(tables, testing::ElementsAre("store/2"));
  ASSERT_OK_AND_ASSIGN(tables, store_->Tables("nothing"));
  EXPECT_THAT(tables, testing::IsEmpty());
  ASSERT_OK_AND_ASSIGN(tables, store_->Tables(""));
  EXPECT_EQ(tables.size(), 5u);
}

TEST_P(StateStoreConformance, ListIsOneTableInKeyOrder) {
  ASSERT_OK(store_->Put("table", "b", "2"));
  ASSERT_OK(store_->Put("table", "a", "1"));
  ASSERT_OK(store_->Put("table", std::string(1, '\xff'), "3"));
  ASSERT_OK(store_->Put("table2", "c", "4"));
  ASSERT_OK_AND_ASSIGN(const auto records, store_->List("table"));
  EXPECT_THAT(records, testing::ElementsAre(
                           testing::Pair("a", "1"), testing::Pair("b", "2"),
                           testing::Pair(std::string(1, '\xff'), "3")));
  ASSERT_OK_AND_ASSIGN(const auto none, store_->List("empty"));
  EXPECT_THAT(none, testing::IsEmpty());
}

TEST_P(StateStoreConformance, DeleteRemovesAndMayBeRepeated) {
  ASSERT_OK(store_->Put("table", "key", "value"));
  ASSERT_OK(store_->Delete("table", "key"));
  ASSERT_OK(store_->Delete("table", "key"));
  EXPECT_FALSE(store_->Get("table", "key").ok());
}

TEST_P(StateStoreConformance, BatchAppliesInOrder) {
  ASSERT_OK(store_->Apply(StateBatch()
                              .Put("table", "kept", "1")
                              .Put("table", "gone", "1")
                              .Delete("table", "gone")
                              .Delete("table", "back")
                              .Put("table", "back", "2")));
  ASSERT_OK_AND_ASSIGN(const auto records, store_->List("table"));
  EXPECT_THAT(records, testing::ElementsAre(testing::Pair("back", "2"),
                                            testing::Pair("kept", "1")));
  ASSERT_OK(store_->Apply(StateBatch()));
}

TEST_P(StateStoreConformance, ATableIsDeletedInTheOrderOfItsBatch) {
  ASSERT_OK(store_->Put("table", "old", "1"));
  ASSERT_OK(store_->Put("other", "old", "1"));
  ASSERT_OK(store_->Apply(StateBatch()
                              .Put("table", "before", "2")
                              .DeleteTable("table")
                              .Put("table", "after", "3")
                              .DeleteTable("never")));
  ASSERT_OK_AND_ASSIGN(auto records, store_->List("table"));
  EXPECT_THAT(records, testing::ElementsAre(testing::Pair("after", "3")));
  ASSERT_OK(store_->Apply(StateBatch().DeleteTable("table")));
  ASSERT_OK_AND_ASSIGN(records, store_->List("table"));
  EXPECT_THAT(records, testing::IsEmpty());
  ASSERT_OK_AND_ASSIGN(const auto tables, store_->Tables(""));
  EXPECT_THAT(tables, testing::ElementsAre("other"));
}

// The last operation on a key counts, whatever came before it.
TEST_P(StateStoreConformance, EachOrderOfAPutADeleteAndATableHasItsOutcome) {
  const auto outcome = [&](const std::vector<int>& order) {
    StateBatch batch;
    for (const int step : order) {
      if (step == 0) batch.Put("table", "key", "new");
      if (step == 1) batch.Delete("table", "key");
      if (step == 2) batch.DeleteTable("table");
      if (step == 3) batch.Put("table", "key", "newer");
    }
    EXPECT_OK(store_->Put("table", "key", "old"));
    EXPECT_OK(store_->Apply(batch));
    return store_->Get("table", "key").value_or("missing");
  };
  std::vector<int> order = {0, 1, 2, 3};
  do {
    const int last = order.back();
    EXPECT_EQ(outcome(order), last == 0   ? "new"
                              : last == 3 ? "newer"
                                          : "missing")
        << testing::PrintToString(order);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_P(StateStoreConformance, ABatchWithinTheLimitsIsTakenWhole) {
  StateBatch many;
  for (size_t i = 0; i < StateStore::kMaxWrites; ++i) {
    many.Put("many", absl::StrCat(i), "x");
  }
  ASSERT_OK(store_->Apply(many));
  ASSERT_OK_AND_ASSIGN(const auto records, store_->List("many"));
  EXPECT_EQ(records.size(), StateStore::kMaxWrites);
  // The names count as well.
  const std::string large(StateStore::kMaxBytes - 2, 'v');
  ASSERT_OK(store_->Put("t", "k", large));
  EXPECT_TRUE(store_->Get("t", "k").value_or("missing") == large);
}

TEST_P(StateStoreConformance, ABatchPastALimitChangesNothing) {
  const auto exhausted = StatusIs(absl::StatusCode::kResourceExhausted,
                                  testing::HasSubstr("limit"));
  const StateStore::Limits limits = store_->limits();
  EXPECT_GE(limits.writes, StateStore::kMaxWrites);
  EXPECT_GE(limits.bytes, StateStore::kMaxBytes);
  StateBatch many;
  for (size_t i = 0; i <= limits.writes; ++i) {
    many.Put("many", absl::StrCat(i), "x");
  }
  EXPECT_THAT(store_->Apply(many), exhausted);
  EXPECT_THAT(
      store_->Apply(StateBatch()
                        .Put("t", "small", "")
                        .Put("t", "k", std::string(limits.bytes - 1, 'v'))),
      exhausted);
  ASSERT_OK_AND_ASSIGN(const auto tables, store_->Tables(""));
  EXPECT_THAT(tables, testing::IsEmpty());
}

TEST_P(StateStoreConformance, WhatIsAppliedSurvivesReopening) {
  if (GetParam().reopen == nullptr) GTEST_SKIP() << "kept in memory";
  const std::string zero(1, '\0');
  ASSERT_OK(store_->Put("table", "gone", "1"));
  ASSERT_OK(store_->Put("dropped", "key", "1"));
  ASSERT_OK(store_->Apply(StateBatch()
                              .Put("table", zero, zero)
                              .Put("table", "large", std::string(1 << 20, 'v'))
                              .Delete("table", "gone")
                              .DeleteTable("dropped")));
  store_ = GetParam().reopen(std::move(store_));
  ASSERT_NE(store_, nullptr);
  EXPECT_EQ(store_->Get("table", zero).value_or("missing"), zero);
  EXPECT_EQ(store_->Get("table", "large").value_or("").size(), 1u << 20);
  EXPECT_FALSE(store_->Get("table", "gone").ok());
  ASSERT_OK_AND_ASSIGN(const auto tables, store_->Tables(""));
  EXPECT_THAT(tables, testing::ElementsAre("table"));
}

// Readers see all of a batch or nothing.
TEST_P(StateStoreConformance, ABatchIsSeenWholeOrNotAtAll) {
  constexpr int kBatches = 20;
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      const auto records = store_->List("table");
      ASSERT_OK(records);
      ASSERT_EQ(records->size() % 2, 0u);
      if (records->empty()) continue;
      EXPECT_EQ(records->front().second, records->back().second);
    }
  });
  for (int i = 0; i < kBatches; ++i) {
    EXPECT_OK(store_->Apply(StateBatch()
                                .DeleteTable("table")
                                .Put("table", "a", absl::StrCat(i))
                                .Put("table", "b", absl::StrCat(i))));
  }
  stop = true;
  reader.join();
}

TEST_P(StateStoreConformance, ManyThreadsLoseNothing) {
  constexpr int kThreads = 4;
  constexpr int kWrites = 10;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < kWrites; ++i) {
        EXPECT_OK(store_->Put("table", absl::StrCat(t, "-", i), "x"));
        EXPECT_OK(store_->List("table"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK_AND_ASSIGN(const auto records, store_->List("table"));
  EXPECT_EQ(records.size(), kThreads * kWrites);
}

}  // namespace coxswain::server

#endif  // COXSWAIN_TESTS_CONFORMANCE_STATE_STORE_CONFORMANCE_H_
