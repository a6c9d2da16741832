#ifndef COXSWAIN_SERVER_GENERATION_SCOPED_COMPONENT_H_
#define COXSWAIN_SERVER_GENERATION_SCOPED_COMPONENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "server/generation/fence.h"
#include "server/generation/generation_guard.h"
#include "server/state/quarantine.h"
#include "server/state/state_writer.h"

namespace coxswain::server {

// What a call of a scope leaves to do once the lock has been released:
// callbacks to run, and changes to commit.
struct ScopeWork {
  struct Commit {
    StateBatch batch;
    // Takes the outcome, under the lock.
    std::function<void(const absl::Status&, ScopeWork*)> committed;
  };
  std::vector<std::function<void()>> calls;
  std::vector<Commit> commits;
};

// A component that holds a Scope for each (job, generation), made on first use
// and dropped when the generation ends, with a table of durable records each.
//
// A stored callback runs exactly once, without a lock held, on a thread of the
// state writer or on the thread whose call decided it, also when the component
// is destroyed: then with UNAVAILABLE. Thread-safe.
//
// A Scope is used under the lock, by one thread at a time. What it wants to
// call or to commit it appends to a ScopeWork. It has
//   absl::Status Load(records, ranks)
//     Takes what an earlier term has left, and the ranks that left cleanly
//     before. Called before anything else. DATA_LOSS.
//   void Cancel(uint64_t call, ScopeWork* work)
//   void Expire(absl::Time now, ScopeWork* work)
//     Both commit nothing.
//   void End(const absl::Status& status, ScopeWork* work)
//     Answers everything that waits with `status`. Called once; only outcomes
//     of commits come after it.
template <typename Scope>
class ScopedComponent : public GenerationObserver {
 public:
  using CallId = uint64_t;  // names a waiting call; 0 is none

  // Stop() has been called.
  ~ScopedComponent() override = default;

  // Answers a waiting call with CANCELLED, if it still waits.
  void Cancel(CallId call) {
    ForEach(
        [call](Scope* scope, ScopeWork* work) { scope->Cancel(call, work); });
  }

  // Answers the waiting calls whose deadline has come.
  void Tick(absl::Time now) {
    ForEach([now](Scope* scope, ScopeWork* work) { scope->Expire(now, work); });
  }

  absl::Status OnResume(const std::vector<GenerationResumed>& running) override;
  void OnGenerationEnded(absl::string_view job, Generation generation,
                         const absl::Status& reason) override;

  // Returns the number of live scopes, for the status page and tests.
  size_t scope_count() const {
    MutexLock lock(&mutex_);
    return scopes_.size();
  }

 protected:
  using Record = StateStore::Record;

  // The names of the tables are `tables` and the number of the generation.
  // `state` outlives the component.
  ScopedComponent(absl::string_view tables, StateWriter* state)
      : tables_(tables), state_(state) {}

  virtual std::unique_ptr<Scope> MakeScope(const std::string& job,
                                           Generation generation,
                                           const std::string& table) const = 0;
  // DATA_LOSS if it is no record of a generation with so many ranks.
  virtual absl::Status CheckRecord(const Record& record,
                                   int world_size) const = 0;

  CallId NewCall() { return next_call_++; }

  // Answers everything that waits, and waits until all is written. First of all
  // in the destructor of what derives from it: callbacks may call again.
  void Stop() {
    ForEach([](Scope* scope, ScopeWork* work) {
      scope->End(absl::UnavailableError("the coordinator is stopping"), work);
    });
    WaitUntilWritten(state_);
  }

  // Calls `call` with the fence's scope, then does the work that it has left.
  // Returns its error; ABORTED if the generation has ended, UNAVAILABLE if the
  // coordinator has.
  absl::Status Call(
      const Fence& fence,
      absl::FunctionRef<absl::Status(Scope* scope, ScopeWork* work)> call);

  // Calls `call`, which commits nothing, with all scopes, then runs the
  // callbacks that it has left.
  void ForEach(absl::FunctionRef<void(Scope* scope, ScopeWork* work)> call);

 private:
  struct Held {
    std::string table;
    std::unique_ptr<Scope> scope;
    size_t under_way = 0;  // commits
    bool stored = false;   // whether there may be records
    bool drop = false;     // the table, when the last commit is over
  };
  using HeldPointer = std::shared_ptr<Held>;
  using Key = std::pair<std::string, Generation>;

  std::string TableOf(Generation generation) const {
    return absl::StrCat(tables_, generation.value());
  }
  HeldPointer AddLocked(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether the records of a generation can be read; those that cannot
  // go into quarantine.
  absl::StatusOr<bool> CheckRecords(const GenerationResumed& resumed,
                                    const std::string& table,
                                    const std::vector<Record>& records);
  // Takes note of what is to be committed for the scope, under the lock.
  static void Start(Held* held, ScopeWork* work);
  void Finish(const HeldPointer& held, ScopeWork work);

  const std::string tables_;
  StateWriter* const state_;
  std::atomic<CallId> next_call_{1};

  mutable Mutex mutex_;
  std::map<Key, HeldPointer> scopes_ ABSL_GUARDED_BY(mutex_);
  GenerationGuard ended_ ABSL_GUARDED_BY(mutex_);
};

template <typename Scope>
typename ScopedComponent<Scope>::HeldPointer ScopedComponent<Scope>::AddLocked(
    const Key& key) {
  HeldPointer& held = scopes_[key];
  if (held == nullptr) {
    held = std::make_shared<Held>();
    held->table = TableOf(key.second);
    held->scope = MakeScope(key.first, key.second, held->table);
  }
  return held;
}

template <typename Scope>
absl::Status ScopedComponent<Scope>::Call(
    const Fence& fence,
    absl::FunctionRef<absl::Status(Scope*, ScopeWork*)> call) {
  ScopeWork work;
  HeldPointer held;
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(ended_.Check(fence));
    held = AddLocked({fence.job, fence.generation});
    status = call(held->scope.get(), &work);
    Start(held.get(), &work);
  }
  Finish(held, std::move(work));
  return status;
}

template <typename Scope>
void ScopedComponent<Scope>::ForEach(
    absl::FunctionRef<void(Scope*, ScopeWork*)> call) {
  ScopeWork work;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, held] : scopes_) call(held->scope.get(), &work);
  }
  RunAll(work.calls);
}

// A table is not deleted before the last commit, which would bring it back.
template <typename Scope>
void ScopedComponent<Scope>::Start(Held* held, ScopeWork* work) {
  held->under_way += work->commits.size();
  held->stored = held->stored || !work->commits.empty();
  if (!held->drop || !held->stored || held->under_way > 0) return;
  held->drop = false;
  work->commits.push_back({StateBatch().DeleteTable(held->table), nullptr});
}

template <typename Scope>
void ScopedComponent<Scope>::Finish(const HeldPointer& held, ScopeWork work) {
  RunAll(work.calls);
  for (ScopeWork::Commit& commit : work.commits) {
    state_->Write(std::move(commit.batch),
                  [this, held, committed = std::move(commit.committed)](
                      const absl::Status& status) {
                    if (!committed) return;
                    ScopeWork more;
                    {
                      MutexLock lock(&mutex_);
                      --held->under_way;
                      committed(status, &more);
                      Start(held.get(), &more);
                    }
                    Finish(held, std::move(more));
                  });
  }
}

template <typename Scope>
absl::StatusOr<bool> ScopedComponent<Scope>::CheckRecords(
    const GenerationResumed& resumed, const std::string& table,
    const std::vector<Record>& records) {
  std::vector<UnreadableRecord> unreadable;
  for (const Record& record : records) {
    const absl::Status readable = CheckRecord(record, resumed.begin.world_size);
    if (readable.ok()) continue;
    unreadable.push_back({table, record.first, record.second, resumed.begin.job,
                          std::string(readable.message())});
  }
  COXSWAIN_RETURN_IF_ERROR(QuarantineRecords(unreadable, state_));
  return unreadable.empty();
}

template <typename Scope>
absl::Status ScopedComponent<Scope>::OnResume(
    const std::vector<GenerationResumed>& running) {
  std::set<std::string> kept;
  for (const GenerationResumed& resumed : running) {
    const std::string table = TableOf(resumed.begin.generation);
    COXSWAIN_ASSIGN_OR_RETURN(const auto records, state_->List(table));
    COXSWAIN_ASSIGN_OR_RETURN(const bool readable,
                              CheckRecords(resumed, table, records));
    if (!readable) continue;  // The membership ends the generation.
    kept.insert(table);
    if (records.empty() && resumed.left.empty()) continue;
    MutexLock lock(&mutex_);
    const HeldPointer held =
        AddLocked({resumed.begin.job, resumed.begin.generation});
    held->stored = !records.empty();
    COXSWAIN_RETURN_IF_ERROR(held->scope->Load(records, resumed.left));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const auto tables, state_->Tables(tables_));
  for (const std::string& table : tables) {
    if (kept.count(table) != 0) continue;
    COXSWAIN_RETURN_IF_ERROR(state_->Apply(StateBatch().DeleteTable(table)));
  }
  return absl::OkStatus();
}

template <typename Scope>
void ScopedComponent<Scope>::OnGenerationEnded(absl::string_view job,
                                               Generation generation,
                                               const absl::Status& reason) {
  ScopeWork work;
  HeldPointer held;
  {
    MutexLock lock(&mutex_);
    ended_.End(generation, reason);
    const auto it = scopes_.find(Key(std::string(job), generation));
    if (it == scopes_.end()) return;
    held = std::move(it->second);
    scopes_.erase(it);
    held->scope->End(GenerationGuard::EndOf(job, generation, reason), &work);
    held->drop = !absl::IsUnavailable(reason);
    Start(held.get(), &work);
  }
  Finish(held, std::move(work));
}

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GENERATION_SCOPED_COMPONENT_H_
