#include "server/store/key_value_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
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

KeyValueStore::KeyValueStore(const StoreLimits& limits, const Clock* clock,
                             StateWriter* state)
    : ScopedComponent(kStoreTables, state), limits_(limits), clock_(clock) {}

std::unique_ptr<StoreScope> KeyValueStore::MakeScope(
    const std::string& /*job*/, Generation /*generation*/,
    const std::string& table) const {
  return std::make_unique<StoreScope>(limits_, table, total_bytes_);
}

absl::Status KeyValueStore::CheckRecord(const Record& record,
                                        int /*world_size*/) const {
  return CheckStoreRecord(record.first, record.second);
}

absl::Status KeyValueStore::CheckKey(absl::string_view key) const {
  if (key.empty()) return absl::InvalidArgumentError("the key is empty");
  if (key.size() > limits_.max_key_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a key of ", key.size(),
                     " bytes passes the store's limit max_key_bytes of ",
                     limits_.max_key_bytes));
  }
  return absl::OkStatus();
}

absl::Status KeyValueStore::CheckChange(const Fence& fence,
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

void KeyValueStore::Change(const Fence& fence, StoreChange change,
                           const StoreChangeDone& done) {
  absl::Status status = CheckChange(fence, change);
  if (status.ok()) {
    status = Call(fence, [&](StoreScope* scope, ScopeWork* work) {
      const StoreRequestKey request = RequestOf(change, fence);
      scope->Change(request, std::move(change), done, work);
      return absl::OkStatus();
    });
  }
  if (!status.ok()) done(status);
}

void KeyValueStore::Set(const Fence& fence, absl::string_view key,
                        absl::string_view value, const SetDone& done) {
  StoreChange change = MakeChange(StoreChange::Kind::kSet, key);
  change.value = std::string(value);
  Change(fence, std::move(change),
         [done](const absl::StatusOr<StoreAnswer>& answer) {
           done(answer.status());
         });
}

void KeyValueStore::Add(const Fence& fence, absl::string_view key,
                        int64_t amount, const AddDone& done) {
  StoreChange change = MakeChange(StoreChange::Kind::kAdd, key);
  change.amount = amount;
  Change(fence, std::move(change),
         [done](const absl::StatusOr<StoreAnswer>& answer) {
           if (!answer.ok()) return done(answer.status());
           done(answer->number);
         });
}

void KeyValueStore::CompareSet(const Fence& fence, absl::string_view key,
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

void KeyValueStore::DeleteKey(const Fence& fence, absl::string_view key,
                              const DeleteDone& done) {
  Change(fence, MakeChange(StoreChange::Kind::kDelete, key),
         [done](const absl::StatusOr<StoreAnswer>& answer) {
           if (!answer.ok()) return done(answer.status());
           done(answer->number != 0);
         });
}

absl::StatusOr<int64_t> KeyValueStore::CountKeys(const Fence& fence,
                                                 absl::string_view prefix) {
  int64_t count = 0;
  COXSWAIN_RETURN_IF_ERROR(Call(fence, [&](StoreScope* scope, ScopeWork*) {
    count = scope->CountKeys(prefix);
    return absl::OkStatus();
  }));
  return count;
}

KeyValueStore::CallId KeyValueStore::StartWait(
    const Fence& fence, const std::vector<std::string>& keys,
    absl::Duration timeout, const GetDone& done) {
  CallId waiting = 0;
  const absl::Status status = Call(fence, [&](StoreScope* scope,
                                              ScopeWork* work) {
    const CallId call = NewCall();
    const absl::Duration bounded = std::min(timeout, limits_.max_timeout);
    if (scope->listeners().Wait(call, keys, clock_->Now() + bounded,
                                timeout <= absl::ZeroDuration(), done, work)) {
      waiting = call;
    }
    return absl::OkStatus();
  });
  if (!status.ok()) done(status);
  return waiting;
}

KeyValueStore::CallId KeyValueStore::Get(const Fence& fence,
                                         absl::string_view key,
                                         absl::Duration timeout,
                                         const GetDone& done) {
  const absl::Status valid = CheckKey(key);
  if (!valid.ok()) {
    done(valid);
    return 0;
  }
  return StartWait(fence, {std::string(key)}, timeout, done);
}

KeyValueStore::CallId KeyValueStore::Wait(const Fence& fence,
                                          const std::vector<std::string>& keys,
                                          absl::Duration timeout,
                                          WaitDone done) {
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

absl::StatusOr<KeyValueStore::CallId> KeyValueStore::OpenWatch(
    const Fence& fence, absl::string_view key) {
  COXSWAIN_RETURN_IF_ERROR(CheckKey(key));
  const CallId watch = NewCall();
  COXSWAIN_RETURN_IF_ERROR(Call(fence, [&](StoreScope* scope, ScopeWork*) {
    return scope->listeners().OpenWatch(watch, key);
  }));
  return watch;
}

void KeyValueStore::NextEvent(CallId watch, const WatchDone& done) {
  bool found = false;
  ForEach([&](StoreScope* scope, ScopeWork* work) {
    if (!scope->listeners().HasWatch(watch)) return;
    found = true;
    scope->listeners().NextEvent(watch, done, work);
  });
  if (found) return;
  done(absl::AbortedError(
      "the generation of this watch has ended, or the watch was closed"));
}

void KeyValueStore::CloseWatch(CallId watch) {
  ForEach([watch](StoreScope* scope, ScopeWork* work) {
    scope->listeners().CloseWatch(watch, work);
  });
}

}  // namespace coxswain::server
