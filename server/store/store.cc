#include "server/store/store.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/state/quarantine.h"
#include "server/state/state_writer.h"
#include "server/store/store_records.h"

namespace coxswain::server {
namespace {

StoreRequestKey RequestOf(const StoreChange& change, const Fence& fence) {
  return {static_cast<char>(change.kind), fence.incarnation.value(),
          fence.request_id};
}

StoreChange MakeChange(StoreChange::Kind kind, absl::string_view key) {
  StoreChange change;
  change.kind = kind;
  change.key = std::string(key);
  return change;
}

}  // namespace

StoreRoom::StoreRoom(const StoreLimits& limits, const Clock* clock,
                     StateWriter* state)
    : limits_(limits), clock_(clock), state_(state) {}

// A stored callback always runs, also when the coordinator stops.
StoreRoom::~StoreRoom() {
  std::map<ScopeKey, StoreWork> works;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_) {
      scope->End(absl::UnavailableError("the coordinator is stopping"),
                 /*drop=*/false, &works[key]);
    }
  }
  for (auto& [key, work] : works) RunAll(work.calls);
  WaitUntilWritten(state_);
}

absl::Status StoreRoom::OnResume(
    const std::vector<GenerationResumed>& running) {
  std::set<std::string> kept;
  for (const GenerationResumed& resumed : running) {
    const std::string table = StoreTable(resumed.begin.generation);
    COXSWAIN_ASSIGN_OR_RETURN(const auto records, state_->List(table));
    std::vector<UnreadableRecord> unreadable;
    for (const auto& [key, value] : records) {
      const absl::Status readable = CheckStoreRecord(key, value);
      if (readable.ok()) continue;
      unreadable.push_back({table, key, value, resumed.begin.job,
                            std::string(readable.message())});
    }
    COXSWAIN_RETURN_IF_ERROR(QuarantineRecords(unreadable, state_));
    // The membership ends it.
    if (!unreadable.empty()) continue;
    kept.insert(table);
    if (records.empty()) continue;
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(
        AddScopeLocked({resumed.begin.job, resumed.begin.generation})
            ->Load(records));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const auto tables, state_->Tables(kStoreTables));
  for (const std::string& table : tables) {
    if (kept.count(table) != 0) continue;
    COXSWAIN_RETURN_IF_ERROR(state_->Apply(StateBatch().DeleteTable(table)));
  }
  return absl::OkStatus();
}

StoreRoom::ScopePointer StoreRoom::AddScopeLocked(const ScopeKey& key) {
  ScopePointer& scope = scopes_[key];
  if (scope == nullptr) {
    scope = std::make_shared<StoreScope>(limits_, StoreTable(key.second),
                                         &total_bytes_);
  }
  return scope;
}

absl::StatusOr<StoreRoom::ScopePointer> StoreRoom::FindScopeLocked(
    const Fence& fence) {
  COXSWAIN_RETURN_IF_ERROR(ended_.Check(fence));
  return AddScopeLocked({fence.job, fence.generation});
}

absl::Status StoreRoom::CheckKey(absl::string_view key) const {
  if (key.empty()) return absl::InvalidArgumentError("the key is empty");
  if (key.size() > limits_.max_key_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a key of ", key.size(),
                     " bytes passes the store's limit max_key_bytes of ",
                     limits_.max_key_bytes));
  }
  return absl::OkStatus();
}

absl::Status StoreRoom::CheckChange(const Fence& fence,
                                    const StoreChange& change) const {
  COXSWAIN_RETURN_IF_ERROR(CheckKey(change.key));
  if (fence.request_id == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a change of key \"", change.key,
        "\" needs Fence.request_id, or a retry could apply it twice"));
  }
  if (change.value.size() > limits_.max_value_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the value of ", change.value.size(), " bytes for key \"", change.key,
        "\" passes the store's limit "
        "max_value_bytes of ",
        limits_.max_value_bytes));
  }
  return absl::OkStatus();
}

void StoreRoom::Change(const Fence& fence, StoreChange change,
                       const StoreChangeDone& done) {
  const absl::Status valid = CheckChange(fence, change);
  if (!valid.ok()) return done(valid);
  const StoreRequestKey request = RequestOf(change, fence);
  StoreWork work;
  absl::StatusOr<ScopePointer> scope = nullptr;
  {
    MutexLock lock(&mutex_);
    scope = FindScopeLocked(fence);
    if (scope.ok()) {
      (*scope)->Change(request, std::move(change), done, &work);
    }
  }
  if (!scope.ok()) return done(scope.status());
  Finish(*scope, std::move(work));
}

void StoreRoom::Finish(const ScopePointer& scope, StoreWork work) {
  RunAll(work.calls);
  for (auto& [commit, batch] : work.commits) {
    state_->Write(std::move(batch),
                  [this, scope, commit = commit](const absl::Status& status) {
                    if (commit != 0) OnCommitted(scope, commit, status);
                  });
  }
}

void StoreRoom::OnCommitted(const ScopePointer& scope, uint64_t commit,
                            const absl::Status& status) {
  StoreWork work;
  {
    MutexLock lock(&mutex_);
    scope->Committed(commit, status, &work);
  }
  Finish(scope, std::move(work));
}

void StoreRoom::Set(const Fence& fence, absl::string_view key,
                    absl::string_view value, const SetDone& done) {
  StoreChange change = MakeChange(StoreChange::Kind::kSet, key);
  change.value = std::string(value);
  Change(fence, std::move(change),
         [done](const absl::StatusOr<StoreAnswer>& answer) {
           done(answer.status());
         });
}

void StoreRoom::Add(const Fence& fence, absl::string_view key, int64_t amount,
                    const AddDone& done) {
  StoreChange change = MakeChange(StoreChange::Kind::kAdd, key);
  change.amount = amount;
  Change(fence, std::move(change),
         [done](const absl::StatusOr<StoreAnswer>& answer) {
           if (!answer.ok()) return done(answer.status());
           done(answer->number);
         });
}

void StoreRoom::CompareSet(const Fence& fence, absl::string_view key,
                           absl::string_view expected,
                           absl::string_view desired,
                           const CompareSetDone& done) {
  StoreChange change = MakeChange(StoreChange::Kind::kCompareSet, key);
  change.expected = std::string(expected);
  change.value = std::string(desired);
  Change(fence, std::move(change),
         [done, desired = std::string(desired)](
             const absl::StatusOr<StoreAnswer>& answer) {
           if (!answer.ok()) return done(answer.status());
           CompareSetResult result = answer->compare_set;
           if (result.swapped) result.value = desired;
           done(std::move(result));
         });
}

void StoreRoom::DeleteKey(const Fence& fence, absl::string_view key,
                          const DeleteDone& done) {
  Change(fence, MakeChange(StoreChange::Kind::kDelete, key),
         [done](const absl::StatusOr<StoreAnswer>& answer) {
           if (!answer.ok()) return done(answer.status());
           done(answer->number != 0);
         });
}

StoreRoom::CallId StoreRoom::StartWait(const Fence& fence,
                                       const std::vector<std::string>& keys,
                                       absl::Duration timeout,
                                       const GetDone& done) {
  StoreCalls calls;
  CallId id = 0;
  bool waits = false;
  absl::Status refused;
  {
    MutexLock lock(&mutex_);
    const absl::StatusOr<ScopePointer> scope = FindScopeLocked(fence);
    refused = scope.status();
    if (refused.ok()) {
      id = next_call_++;
      const absl::Duration bounded = std::min(timeout, limits_.max_timeout);
      waits = (*scope)->listeners().Wait(id, keys, clock_->Now() + bounded,
                                         timeout <= absl::ZeroDuration(), done,
                                         &calls);
    }
  }
  if (!refused.ok()) done(refused);
  RunAll(calls);
  return waits ? id : 0;
}

StoreRoom::CallId StoreRoom::Get(const Fence& fence, absl::string_view key,
                                 absl::Duration timeout, const GetDone& done) {
  const absl::Status valid = CheckKey(key);
  if (!valid.ok()) {
    done(valid);
    return 0;
  }
  return StartWait(fence, {std::string(key)}, timeout, done);
}

StoreRoom::CallId StoreRoom::Wait(const Fence& fence,
                                  const std::vector<std::string>& keys,
                                  absl::Duration timeout, WaitDone done) {
  absl::Status valid;
  if (keys.empty()) {
    valid = absl::InvalidArgumentError("no keys to wait for");
  } else if (keys.size() > limits_.max_wait_keys) {
    valid = absl::ResourceExhaustedError(
        absl::StrCat("waiting for ", keys.size(),
                     " keys passes the store's limit max_wait_keys of ",
                     limits_.max_wait_keys));
  }
  for (const std::string& key : keys) valid.Update(CheckKey(key));
  if (!valid.ok()) {
    done(valid);
    return 0;
  }
  return StartWait(
      fence, keys, timeout,
      [done = std::move(done)](const absl::StatusOr<std::string>& value) {
        done(value.status());
      });
}

void StoreRoom::Cancel(CallId call) {
  StoreCalls calls;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_) scope->listeners().Cancel(call, &calls);
  }
  RunAll(calls);
}

absl::StatusOr<StoreRoom::CallId> StoreRoom::OpenWatch(const Fence& fence,
                                                       absl::string_view key) {
  COXSWAIN_RETURN_IF_ERROR(CheckKey(key));
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(const ScopePointer scope, FindScopeLocked(fence));
  const CallId id = next_call_++;
  COXSWAIN_RETURN_IF_ERROR(scope->listeners().OpenWatch(id, key));
  return id;
}

void StoreRoom::NextEvent(CallId watch, const WatchDone& done) {
  StoreCalls calls;
  bool found = false;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_) {
      if (!scope->listeners().HasWatch(watch)) continue;
      found = true;
      scope->listeners().NextEvent(watch, done, &calls);
      break;
    }
  }
  if (!found) {
    done(absl::AbortedError(
        "the generation of this watch has ended, or the watch was closed"));
  }
  RunAll(calls);
}

void StoreRoom::CloseWatch(CallId watch) {
  StoreCalls calls;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_)
      scope->listeners().CloseWatch(watch, &calls);
  }
  RunAll(calls);
}

void StoreRoom::Tick(absl::Time now) {
  StoreCalls calls;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_) scope->listeners().Expire(now, &calls);
  }
  RunAll(calls);
}

void StoreRoom::OnGenerationEnded(absl::string_view job, Generation generation,
                                  const absl::Status& reason) {
  StoreWork work;
  ScopePointer scope;
  {
    MutexLock lock(&mutex_);
    ended_.End(generation, reason);
    const auto it = scopes_.find(ScopeKey(std::string(job), generation));
    if (it == scopes_.end()) return;
    scope = std::move(it->second);
    scopes_.erase(it);
    scope->End(GenerationGuard::EndOf(job, generation, reason),
               /*drop=*/!absl::IsUnavailable(reason), &work);
  }
  Finish(scope, std::move(work));
}

size_t StoreRoom::scope_count() const {
  MutexLock lock(&mutex_);
  return scopes_.size();
}

}  // namespace coxswain::server
