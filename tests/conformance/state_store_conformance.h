#ifndef COXSWAIN_TESTS_CONFORMANCE_STATE_STORE_CONFORMANCE_H_
#define COXSWAIN_TESTS_CONFORMANCE_STATE_STORE_CONFORMANCE_H_

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
  // An empty store, on a medium of its own.
  std::function<std::unique_ptr<StateStore>()> make;
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
  const std::string bytes("\0\xff'\"\n%", 6);
  ASSERT_OK(store_->Put(bytes, bytes, bytes));
  ASSERT_OK(store_->Put("", "", ""));
  EXPECT_EQ(store_->Get(bytes, bytes).value_or("missing"), bytes);
  EXPECT_EQ(store_->Get("", "").value_or("missing"), "");
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
