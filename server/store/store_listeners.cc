#include "server/store/store_listeners.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coxswain::server {
namespace {

// Enough keys to recognise what did not come, few enough for a log line.
constexpr size_t kMaxNamedKeys = 8;

std::string NameKeys(const std::set<std::string>& keys) {
  std::vector<std::string> named;
  for (const std::string& key : keys) {
    if (named.size() == kMaxNamedKeys) break;
    named.push_back(absl::StrCat("\"", key, "\""));
  }
  const size_t rest = keys.size() - named.size();
  return absl::StrCat(absl::StrJoin(named, ", "),
                      rest > 0 ? absl::StrCat(" and ", rest, " more") : "");
}

}  // namespace

bool StoreListeners::Wait(uint64_t id, std::vector<std::string> keys,
                          absl::Time deadline, bool answer_at_once,
                          GetDone done, ScopeWork* work) {
  std::set<std::string> missing;
  for (const std::string& key : keys) {
    if (values_->count(key) == 0) missing.insert(key);
  }
  const auto answer = [&](absl::StatusOr<std::string> result) {
    work->calls.push_back(
        [done = std::move(done), result = std::move(result)] { done(result); });
    return false;
  };
  if (missing.empty()) return answer(values_->at(keys.front()));
  if (answer_at_once) {
    return answer(
        absl::NotFoundError(absl::StrCat("no such key: ", NameKeys(missing))));
  }
  if (waiters_.size() >= limits_.max_waiting_calls) {
    return answer(StoreLimitError("max_waiting_calls",
                                  limits_.max_waiting_calls,
                                  "wait with fewer calls at once"));
  }
  for (const std::string& key : keys) waiters_of_key_[key].insert(id);
  deadlines_.emplace(deadline, id);
  waiters_[id] = {std::move(keys), std::move(missing), deadline,
                  std::move(done)};
  return true;
}

void StoreListeners::Changed(const std::string& key, bool existed,
                             ScopeWork* work) {
  const bool exists = values_->count(key) != 0;
  if (exists || existed) NotifyWatches(key, work);
  if (exists != existed) NotifyWaiters(key, exists, work);
}

void StoreListeners::NotifyWaiters(const std::string& key, bool exists,
                                   ScopeWork* work) {
  const auto waiting = waiters_of_key_.find(key);
  if (waiting == waiters_of_key_.end()) return;
  const std::set<uint64_t> ids = waiting->second;  // answering changes the set
  for (const uint64_t id : ids) {
    Waiter& waiter = waiters_.at(id);
    if (!exists) {
      waiter.missing.insert(key);
      continue;
    }
    waiter.missing.erase(key);
    if (!waiter.missing.empty()) continue;
    AnswerWaiter(id, values_->at(waiter.keys.front()), work);
  }
}

void StoreListeners::AnswerWaiter(uint64_t id,
                                  absl::StatusOr<std::string> answer,
                                  ScopeWork* work) {
  const auto it = waiters_.find(id);
  for (const std::string& key : it->second.keys) {
    const auto of_key = waiters_of_key_.find(key);
    if (of_key == waiters_of_key_.end()) continue;  // a key named twice
    of_key->second.erase(id);
    if (of_key->second.empty()) waiters_of_key_.erase(of_key);
  }
  deadlines_.erase({it->second.deadline, id});
  work->calls.push_back([done = std::move(it->second.done),
                         answer = std::move(answer)] { done(answer); });
  waiters_.erase(it);
}

void StoreListeners::Cancel(uint64_t id, ScopeWork* work) {
  if (waiters_.count(id) == 0) return;
  AnswerWaiter(id, absl::CancelledError("the call was withdrawn"), work);
}

void StoreListeners::Expire(absl::Time now, ScopeWork* work) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t id = deadlines_.begin()->second;
    AnswerWaiter(id,
                 absl::DeadlineExceededError(absl::StrCat(
                     "no member has set ", NameKeys(waiters_.at(id).missing),
                     " before the deadline")),
                 work);
  }
}

absl::Status StoreListeners::OpenWatch(uint64_t id, absl::string_view key) {
  if (watches_.size() >= limits_.max_watches) {
    return StoreLimitError("max_watches", limits_.max_watches, "close watches");
  }
  Watch& watch = watches_[id];
  watch.key = std::string(key);
  watch.changed = values_->count(watch.key) != 0;
  watches_of_key_[watch.key].insert(id);
  return absl::OkStatus();
}

StoreEvent StoreListeners::EventOf(const std::string& key) const {
  const auto it = values_->find(key);
  if (it == values_->end()) return {"", true};
  return {it->second, false};
}

void StoreListeners::NextEvent(uint64_t id, WatchDone done, ScopeWork* work) {
  Watch& watch = watches_.at(id);
  if (!watch.changed) {
    watch.done = std::move(done);
    return;
  }
  watch.changed = false;
  work->calls.push_back(
      [done = std::move(done), event = EventOf(watch.key)] { done(event); });
}

void StoreListeners::NotifyWatches(const std::string& key, ScopeWork* work) {
  const auto of_key = watches_of_key_.find(key);
  if (of_key == watches_of_key_.end()) return;
  for (const uint64_t id : of_key->second) {
    Watch& watch = watches_.at(id);
    watch.changed = true;
    if (!watch.done) continue;
    WatchDone done = std::move(watch.done);
    watch.done = nullptr;
    NextEvent(id, std::move(done), work);
  }
}

void StoreListeners::CloseWatch(uint64_t id, ScopeWork* work) {
  const auto it = watches_.find(id);
  if (it == watches_.end()) return;
  const auto of_key = watches_of_key_.find(it->second.key);
  of_key->second.erase(id);
  if (of_key->second.empty()) watches_of_key_.erase(of_key);
  if (it->second.done) {
    work->calls.push_back([done = std::move(it->second.done)] {
      done(absl::CancelledError("the watch was closed"));
    });
  }
  watches_.erase(it);
}

void StoreListeners::End(const absl::Status& status, ScopeWork* work) {
  while (!waiters_.empty()) {
    AnswerWaiter(waiters_.begin()->first, status, work);
  }
  for (auto& [id, watch] : watches_) {
    if (!watch.done) continue;
    work->calls.push_back(
        [done = std::move(watch.done), status] { done(status); });
  }
  watches_.clear();
  watches_of_key_.clear();
}

}  // namespace coxswain::server
