#include "server/store/store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::server {
namespace {

StoreScope::RequestKey RequestOf(char operation, const Fence& fence) {
  return {operation, fence.incarnation.value(), fence.request_id};
}

}  // namespace

StoreRoom::StoreRoom(const StoreLimits& limits, const Clock* clock)
    : limits_(limits), clock_(clock) {}

// A stored callback always runs, also when the coordinator stops.
StoreRoom::~StoreRoom() {
  StoreCalls calls;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_) {
      scope->End(absl::UnavailableError("the coordinator is stopping"), &calls);
    }
  }
  RunAll(calls);
}

absl::StatusOr<StoreScope*> StoreRoom::FindScopeLocked(const Fence& fence) {
  COXSWAIN_RETURN_IF_ERROR(ended_.Check(fence));
  auto& scope = scopes_[ScopeKey(fence.job, fence.generation)];
  if (scope == nullptr) {
    scope = std::make_unique<StoreScope>(limits_, &total_bytes_);
  }
  return scope.get();
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

absl::Status StoreRoom::CheckWrite(const Fence& fence, absl::string_view key,
                                   absl::string_view value) const {
  COXSWAIN_RETURN_IF_ERROR(CheckKey(key));
  if (fence.request_id == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a change of key \"", key,
        "\" needs Fence.request_id, or a retry could apply it twice"));
  }
  if (value.size() > limits_.max_value_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the value of ", value.size(), " bytes for key \"", key,
                     "\" passes the store's limit max_value_bytes of ",
                     limits_.max_value_bytes));
  }
  return absl::OkStatus();
}

absl::Status StoreRoom::Set(const Fence& fence, absl::string_view key,
                            absl::string_view value) {
  COXSWAIN_RETURN_IF_ERROR(CheckWrite(fence, key, value));
  StoreCalls calls;
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_ASSIGN_OR_RETURN(StoreScope * scope, FindScopeLocked(fence));
    status = scope->Set(RequestOf('s', fence), key, value, &calls);
  }
  RunAll(calls);
  return status;
}

absl::StatusOr<int64_t> StoreRoom::Add(const Fence& fence,
                                       absl::string_view key, int64_t amount) {
  COXSWAIN_RETURN_IF_ERROR(CheckWrite(fence, key, ""));
  StoreCalls calls;
  absl::StatusOr<int64_t> result = 0;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_ASSIGN_OR_RETURN(StoreScope * scope, FindScopeLocked(fence));
    result = scope->Add(RequestOf('a', fence), key, amount, &calls);
  }
  RunAll(calls);
  return result;
}

absl::StatusOr<CompareSetResult> StoreRoom::CompareSet(
    const Fence& fence, absl::string_view key, absl::string_view expected,
    absl::string_view desired) {
  COXSWAIN_RETURN_IF_ERROR(CheckWrite(fence, key, desired));
  StoreCalls calls;
  absl::StatusOr<CompareSetResult> result = CompareSetResult();
  {
    MutexLock lock(&mutex_);
    COXSWAIN_ASSIGN_OR_RETURN(StoreScope * scope, FindScopeLocked(fence));
    result = scope->CompareSet(RequestOf('c', fence), key, expected, desired,
                               &calls);
  }
  RunAll(calls);
  return result;
}

absl::StatusOr<bool> StoreRoom::DeleteKey(const Fence& fence,
                                          absl::string_view key) {
  COXSWAIN_RETURN_IF_ERROR(CheckWrite(fence, key, ""));
  StoreCalls calls;
  bool existed = false;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_ASSIGN_OR_RETURN(StoreScope * scope, FindScopeLocked(fence));
    existed = scope->Delete(RequestOf('d', fence), key, &calls);
  }
  RunAll(calls);
  return existed;
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
    const absl::StatusOr<StoreScope*> scope = FindScopeLocked(fence);
    refused = scope.status();
    if (refused.ok()) {
      id = next_call_++;
      const absl::Duration bounded = std::min(timeout, limits_.max_timeout);
      waits = (*scope)->Wait(id, keys, clock_->Now() + bounded,
                             timeout <= absl::ZeroDuration(), done, &calls);
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
    for (auto& [key, scope] : scopes_) scope->Cancel(call, &calls);
  }
  RunAll(calls);
}

absl::StatusOr<StoreRoom::CallId> StoreRoom::OpenWatch(const Fence& fence,
                                                       absl::string_view key) {
  COXSWAIN_RETURN_IF_ERROR(CheckKey(key));
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(StoreScope * scope, FindScopeLocked(fence));
  const CallId id = next_call_++;
  COXSWAIN_RETURN_IF_ERROR(scope->OpenWatch(id, key));
  return id;
}

void StoreRoom::NextEvent(CallId watch, const WatchDone& done) {
  StoreCalls calls;
  bool found = false;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_) {
      if (!scope->HasWatch(watch)) continue;
      found = true;
      scope->NextEvent(watch, done, &calls);
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
    for (auto& [key, scope] : scopes_) scope->CloseWatch(watch, &calls);
  }
  RunAll(calls);
}

void StoreRoom::Tick(absl::Time now) {
  StoreCalls calls;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_) scope->Expire(now, &calls);
  }
  RunAll(calls);
}

void StoreRoom::OnGenerationEnded(absl::string_view job, Generation generation,
                                  const absl::Status& reason) {
  StoreCalls calls;
  {
    MutexLock lock(&mutex_);
    ended_.End(generation);
    const auto it = scopes_.find(ScopeKey(std::string(job), generation));
    if (it != scopes_.end()) {
      it->second->End(
          GenerationGuard::EndedError(job, generation, reason.message()),
          &calls);
      scopes_.erase(it);
    }
  }
  RunAll(calls);
}

size_t StoreRoom::scope_count() const {
  MutexLock lock(&mutex_);
  return scopes_.size();
}

}  // namespace coxswain::server
