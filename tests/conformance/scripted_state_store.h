#ifndef COXSWAIN_TESTS_CONFORMANCE_SCRIPTED_STATE_STORE_H_
#define COXSWAIN_TESTS_CONFORMANCE_SCRIPTED_STATE_STORE_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "server/state/memory_state_store.h"

namespace coxswain::server {

// A store in memory whose commits a test can hold up, refuse, or end for good,
// as a crash does. Thread-safe.
class ScriptedStateStore : public StateStore {
 public:
  absl::StatusOr<std::string> Get(absl::string_view table,
                                  absl::string_view key) const override {
    return records_.Get(table, key);
  }
  absl::StatusOr<std::vector<Record>> List(
      absl::string_view table) const override {
    return records_.List(table);
  }
  absl::StatusOr<std::vector<std::string>> Tables(
      absl::string_view prefix) const override {
    return records_.Tables(prefix);
  }
  absl::Status Apply(const StateBatch& batch) override {
    {
      MutexLock lock(&mutex_);
      ++applies_;
      most_writes_ = std::max(most_writes_, batch.writes().size());
      changed_.NotifyAll();
      changed_.WaitForWork(
          &mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !held_; });
      if (crash_after_ == 0) return absl::UnavailableError("crashed");
      for (const StateBatch::Write& write : batch.writes()) {
        if (write.key.find(refused_) != std::string::npos) {
          return absl::UnavailableError("refused " + write.key);
        }
      }
      if (crash_after_ > 0) --crash_after_;
    }
    return records_.Apply(batch);
  }

  // Makes commits wait from now on, until Release().
  void Hold() {
    MutexLock lock(&mutex_);
    held_ = true;
  }
  void Release() {
    MutexLock lock(&mutex_);
    held_ = false;
    changed_.NotifyAll();
  }
  // Waits until `count` commits have been asked for. Returns false after a
  // minute.
  bool WaitForApplies(size_t count) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, absl::Minutes(1),
                            [this, count]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                              return applies_ >= count;
                            });
  }

  // Fails batches with a key that contains this.
  void Refuse(const std::string& key) {
    MutexLock lock(&mutex_);
    refused_ = key;
  }
  void RefuseNothing() { Refuse(kNone); }

  // Fails all batches after so many more; negative: none.
  void CrashAfter(int batches) {
    MutexLock lock(&mutex_);
    crash_after_ = batches;
  }

  size_t applies() const {
    MutexLock lock(&mutex_);
    return applies_;
  }
  // Returns the most writes of one batch.
  size_t most_writes() const {
    MutexLock lock(&mutex_);
    return most_writes_;
  }

 private:
  static constexpr char kNone[] = "(no such key)";

  MemoryStateStore records_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  std::string refused_ ABSL_GUARDED_BY(mutex_) = kNone;
  int crash_after_ ABSL_GUARDED_BY(mutex_) = -1;
  size_t applies_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t most_writes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_TESTS_CONFORMANCE_SCRIPTED_STATE_STORE_H_
