#ifndef COXSWAIN_TESTS_CONFORMANCE_STATE_WRITER_CONFORMANCE_H_
#define COXSWAIN_TESTS_CONFORMANCE_STATE_WRITER_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "server/state/state_writer.h"
#include "tests/conformance/scripted_state_store.h"

namespace coxswain::server {

// What every StateWriter must do. A writer's test instantiates it.
struct StateWriterMaker {
  std::string name;
  std::function<std::unique_ptr<StateWriter>(StateStore*)> make;
};
inline void PrintTo(const StateWriterMaker& maker, std::ostream* os) {
  *os << maker.name;
}

// The results of callbacks, in their order. Thread-safe.
class CallbackLog {
 public:
  void Add(const std::string& line) {
    MutexLock lock(&mutex_);
    lines_.push_back(line);
  }
  StateWriter::Done Note(const std::string& name) {
    return [this, name](const absl::Status& status) {
      Add(absl::StrCat(name, status.ok() ? "" : " failed"));
    };
  }
  std::vector<std::string> lines() const {
    MutexLock lock(&mutex_);
    return lines_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

class StateWriterConformance : public testing::TestWithParam<StateWriterMaker> {
 protected:
  StateWriterConformance() : writer_(GetParam().make(&store_)) {}

  static StateBatch Batch(const std::string& key, const std::string& value) {
    return StateBatch().Put("table", key, value);
  }
  std::string Stored(const std::string& key) {
    return store_.Get("table", key).value_or("missing");
  }

  ScriptedStateStore store_;
  CallbackLog log_;
  std::unique_ptr<StateWriter> writer_;
};

TEST_P(StateWriterConformance, CallbacksRunOnceInTheOrderOfTheCalls) {
  std::vector<std::string> expected;
  for (int i = 0; i < 300; ++i) {
    const std::string name = absl::StrCat(i);
    expected.push_back(name);
    if (i % 3 == 0) {
      writer_->AfterWritten([this, name] { log_.Add(name); });
    } else {
      writer_->Write(i % 3 == 1 ? Batch(name, "x") : StateBatch(),
                     log_.Note(name));
    }
  }
  WaitUntilWritten(writer_.get());
  EXPECT_EQ(log_.lines(), expected);
}

TEST_P(StateWriterConformance, WhatACallbackSpeaksOfIsStored) {
  for (int i = 0; i < 50; ++i) {
    const std::string key = absl::StrCat(i);
    writer_->Write(Batch(key, "x"), [this, key](const absl::Status& status) {
      EXPECT_OK(status);
      EXPECT_EQ(Stored(key), "x");
    });
    writer_->AfterWritten([this, key] {
      EXPECT_EQ(Stored(key), "x");
      log_.Add(key);
    });
  }
  WaitUntilWritten(writer_.get());
  EXPECT_EQ(log_.lines().size(), 50u);
}

TEST_P(StateWriterConformance, OnlyTheBatchAtFaultFails) {
  store_.Refuse("bad");
  for (int i = 0; i < 20; ++i) {
    const std::string key = absl::StrCat(i, i % 5 == 3 ? "bad" : "");
    writer_->Write(StateBatch()
                       .Put("table", absl::StrCat(i, "a"), "x")
                       .Put("table", key, "x"),
                   log_.Note(key));
  }
  writer_->AfterWritten([this] { log_.Add("after"); });
  WaitUntilWritten(writer_.get());
  const std::vector<std::string> lines = log_.lines();
  ASSERT_EQ(lines.size(), 21u);
  for (int i = 0; i < 20; ++i) {
    const bool bad = i % 5 == 3;
    EXPECT_EQ(lines[i], absl::StrCat(i, bad ? "bad failed" : ""));
    EXPECT_EQ(Stored(absl::StrCat(i, "a")), bad ? "missing" : "x");
  }
  EXPECT_EQ(lines.back(), "after");
}

TEST_P(StateWriterConformance, ABatchPastALimitFailsAlone) {
  StateBatch large;
  for (size_t i = 0; i <= StateStore::kMaxWrites; ++i) {
    large.Put("table", absl::StrCat("large", i), "x");
  }
  writer_->Write(Batch("before", "x"), log_.Note("before"));
  writer_->Write(large, log_.Note("large"));
  writer_->Write(Batch("after", "x"), log_.Note("after"));
  WaitUntilWritten(writer_.get());
  EXPECT_THAT(log_.lines(),
              testing::ElementsAre("before", "large failed", "after"));
  EXPECT_EQ(Stored("large0"), "missing");
  EXPECT_EQ(Stored("after"), "x");
}

TEST_P(StateWriterConformance, ApplyIsCommittedInItsPlace) {
  for (int i = 0; i < 20; ++i) {
    writer_->Write(Batch("key", "1"), log_.Note("1"));
    writer_->Write(Batch("first", absl::StrCat(i)), log_.Note("2"));
    ASSERT_OK(writer_->Apply(Batch("key", "2")));
    ASSERT_EQ(Stored("key"), "2");
    ASSERT_EQ(Stored("first"), absl::StrCat(i));
    writer_->Write(Batch("key", "3"), log_.Note("3"));
    ASSERT_OK(writer_->Apply(StateBatch()));
    ASSERT_EQ(Stored("key"), "3");
  }
  store_.Refuse("bad");
  EXPECT_THAT(writer_->Apply(Batch("bad", "x")),
              StatusIs(absl::StatusCode::kUnavailable,
                       testing::HasSubstr("refused bad")));
}

// A callback that takes a lock, and one that holds it while it waits for a
// commit that comes later.
TEST_P(StateWriterConformance, ACallbackMayWaitForALockOfACallerOfApply) {
  Mutex mutex;
  store_.Hold();
  std::thread writing([&] {
    writer_->Write(Batch("a", "x"), [&](const absl::Status& status) {
      MutexLock lock(&mutex);
      log_.Add(status.ok() ? "called" : "failed");
    });
  });
  ASSERT_TRUE(store_.WaitForApplies(1));
  std::thread applying([&] {
    MutexLock lock(&mutex);
    store_.Release();
    EXPECT_OK(writer_->Apply(Batch("b", "x")));
    EXPECT_OK(writer_->Apply(Batch("c", "x")));
  });
  applying.join();
  writing.join();
  WaitUntilWritten(writer_.get());
  EXPECT_THAT(log_.lines(), testing::ElementsAre("called"));
}

TEST_P(StateWriterConformance, ACallbackMayWrite) {
  std::function<void(int)> next = [&](int left) {
    writer_->Write(Batch(absl::StrCat(left), "x"),
                   [&, left](const absl::Status& status) {
                     EXPECT_OK(status);
                     log_.Add(absl::StrCat(left));
                     if (left > 0) next(left - 1);
                   });
  };
  next(5);
  for (int i = 0; i < 6; ++i) WaitUntilWritten(writer_.get());
  EXPECT_THAT(log_.lines(), testing::ElementsAre("5", "4", "3", "2", "1", "0"));
  EXPECT_EQ(Stored("0"), "x");
}

TEST_P(StateWriterConformance, ManyThreadsKeepTheirOrders) {
  constexpr int kThreads = 4;
  constexpr int kWrites = 200;
  std::vector<std::vector<int>> seen(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kWrites; ++i) {
        writer_->Write(Batch(absl::StrCat("last", t), absl::StrCat(i)),
                       [&, t, i](const absl::Status& status) {
                         EXPECT_OK(status);
                         seen[t].push_back(i);
                       });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  WaitUntilWritten(writer_.get());
  for (int t = 0; t < kThreads; ++t) {
    EXPECT_EQ(seen[t].size(), kWrites);
    EXPECT_TRUE(std::is_sorted(seen[t].begin(), seen[t].end()));
    EXPECT_EQ(Stored(absl::StrCat("last", t)), absl::StrCat(kWrites - 1));
  }
}

TEST_P(StateWriterConformance, ReadsGoToTheStore) {
  ASSERT_OK(writer_->Put("table", "key", "value"));
  EXPECT_EQ(writer_->Get("table", "key").value_or("missing"), "value");
  ASSERT_OK_AND_ASSIGN(const auto records, writer_->List("table"));
  EXPECT_THAT(records, testing::ElementsAre(testing::Pair("key", "value")));
  ASSERT_OK_AND_ASSIGN(const auto tables, writer_->Tables("t"));
  EXPECT_THAT(tables, testing::ElementsAre("table"));
}

}  // namespace coxswain::server

#endif  // COXSWAIN_TESTS_CONFORMANCE_STATE_WRITER_CONFORMANCE_H_
