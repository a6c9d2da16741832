#include "server/store/store_scope.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace coxswain::server {
namespace {

// Enough keys to recognise what did not come, few enough for a log line.
constexpr size_t kMaxNamedKeys = 8;

absl::Status LimitError(absl::string_view limit, size_t value,
                        absl::string_view advice) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the store's limit ", limit, " of ", value,
                   " per generation is reached; ", advice));
}

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

const StoreScope::Answer* StoreScope::Remembered(
    const RequestKey& request) const {
  const auto it = answers_.find(request);
  return it == answers_.end() ? nullptr : &it->second;
}

void StoreScope::Remember(const RequestKey& request, Answer answer) {
  answer_bytes_ += answer.compare_set.value.size();
  answers_.emplace(request, std::move(answer));
  answer_order_.push_back(request);
  while (answers_.size() > limits_.max_remembered ||
         answer_bytes_ > limits_.max_remembered_bytes) {
    const auto oldest = answers_.find(answer_order_.front());
    answer_bytes_ -= oldest->second.compare_set.value.size();
    answers_.erase(oldest);
    answer_order_.pop_front();
  }
}

absl::Status StoreScope::Put(absl::string_view key, absl::string_view value,
                             StoreCalls* calls) {
  auto it = values_.find(key);
  const bool is_new = it == values_.end();
  if (is_new && values_.size() >= limits_.max_keys) {
    return LimitError("max_keys", limits_.max_keys, "delete keys");
  }
  const size_t old_bytes = is_new ? 0 : key.size() + it->second.size();
  const size_t bytes = bytes_ - old_bytes + key.size() + value.size();
  if (bytes > limits_.max_bytes) {
    return LimitError("max_bytes", limits_.max_bytes,
                      "delete keys or store smaller values");
  }
  const size_t total = *total_bytes_ - bytes_ + bytes;
  if (bytes > bytes_ && total > limits_.max_total_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the store's limit max_total_bytes of ", limits_.max_total_bytes,
        " for all jobs together is reached; delete keys, or wait for other "
        "jobs to end"));
  }
  *total_bytes_ = total;
  bytes_ = bytes;
  if (is_new) {
    it = values_.emplace(std::string(key), std::string(value)).first;
  } else {
    it->second = std::string(value);
  }
  NotifyWatches(it->first, calls);
  if (!is_new) return absl::OkStatus();
  const auto waiting = waiters_of_key_.find(key);
  if (waiting == waiters_of_key_.end()) return absl::OkStatus();
  const std::set<uint64_t> ids = waiting->second;  // answering changes the set
  for (const uint64_t id : ids) {
    Waiter& waiter = waiters_.at(id);
    waiter.missing.erase(it->first);
    if (waiter.missing.empty()) {
      AnswerWaiter(id, values_.at(waiter.keys.front()), calls);
    }
  }
  return absl::OkStatus();
}

absl::Status StoreScope::Set(const RequestKey& request, absl::string_view key,
                             absl::string_view value, StoreCalls* calls) {
  if (Remembered(request) != nullptr) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(Put(key, value, calls));
  Remember(request, {});
  return absl::OkStatus();
}

absl::StatusOr<int64_t> StoreScope::Add(const RequestKey& request,
                                        absl::string_view key, int64_t amount,
                                        StoreCalls* calls) {
  if (const Answer* first = Remembered(request)) return first->number;
  int64_t current = 0;
  const auto it = values_.find(key);
  if (it != values_.end() && !absl::SimpleAtoi(it->second, &current)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot add to key \"", key, "\": its value (",
                     it->second.size(), " bytes) is not a decimal number"));
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(current, amount, &sum)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot add ", amount, " to key \"", key, "\": ", current,
                     " + ", amount, " does not fit 64 bits"));
  }
  COXSWAIN_RETURN_IF_ERROR(Put(key, absl::StrCat(sum), calls));
  Answer answer;
  answer.number = sum;
  Remember(request, std::move(answer));
  return sum;
}

absl::StatusOr<CompareSetResult> StoreScope::CompareSet(
    const RequestKey& request, absl::string_view key,
    absl::string_view expected, absl::string_view desired, StoreCalls* calls) {
  if (const Answer* first = Remembered(request)) return first->compare_set;
  const auto it = values_.find(key);
  if (it == values_.end() && !expected.empty()) {
    return absl::NotFoundError(
        absl::StrCat("key \"", key, "\" is missing, and a value of ",
                     expected.size(), " bytes was expected"));
  }
  Answer answer;
  answer.compare_set.swapped = it == values_.end() || it->second == expected;
  if (answer.compare_set.swapped) {
    answer.compare_set.value = std::string(desired);
    COXSWAIN_RETURN_IF_ERROR(Put(key, desired, calls));
  } else {
    answer.compare_set.value = it->second;
  }
  CompareSetResult result = answer.compare_set;
  Remember(request, std::move(answer));
  return result;
}

bool StoreScope::Delete(const RequestKey& request, absl::string_view key,
                        StoreCalls* calls) {
  if (const Answer* first = Remembered(request)) return first->number != 0;
  const auto it = values_.find(key);
  Answer answer;
  answer.number = it == values_.end() ? 0 : 1;
  Remember(request, std::move(answer));
  if (it == values_.end()) return false;
  const std::string name = it->first;
  const size_t bytes = name.size() + it->second.size();
  bytes_ -= bytes;
  *total_bytes_ -= bytes;
  values_.erase(it);
  const auto waiting = waiters_of_key_.find(name);
  if (waiting != waiters_of_key_.end()) {
    for (const uint64_t id : waiting->second) {
      waiters_.at(id).missing.insert(name);
    }
  }
  NotifyWatches(name, calls);
  return true;
}

bool StoreScope::Wait(uint64_t id, std::vector<std::string> keys,
                      absl::Time deadline, bool answer_at_once, GetDone done,
                      StoreCalls* calls) {
  std::set<std::string> missing;
  for (const std::string& key : keys) {
    if (values_.count(key) == 0) missing.insert(key);
  }
  const auto answer = [&](absl::StatusOr<std::string> result) {
    calls->push_back(
        [done = std::move(done), result = std::move(result)] { done(result); });
    return false;
  };
  if (missing.empty()) return answer(values_.at(keys.front()));
  if (answer_at_once) {
    return answer(
        absl::NotFoundError(absl::StrCat("no such key: ", NameKeys(missing))));
  }
  if (waiters_.size() >= limits_.max_waiting_calls) {
    return answer(LimitError("max_waiting_calls", limits_.max_waiting_calls,
                             "wait with fewer calls at once"));
  }
  for (const std::string& key : keys) waiters_of_key_[key].insert(id);
  deadlines_.emplace(deadline, id);
  waiters_[id] = {std::move(keys), std::move(missing), deadline,
                  std::move(done)};
  return true;
}

void StoreScope::AnswerWaiter(uint64_t id, absl::StatusOr<std::string> answer,
                              StoreCalls* calls) {
  const auto it = waiters_.find(id);
  for (const std::string& key : it->second.keys) {
    const auto of_key = waiters_of_key_.find(key);
    if (of_key == waiters_of_key_.end()) continue;  // a key named twice
    of_key->second.erase(id);
    if (of_key->second.empty()) waiters_of_key_.erase(of_key);
  }
  deadlines_.erase({it->second.deadline, id});
  calls->push_back([done = std::move(it->second.done),
                    answer = std::move(answer)] { done(answer); });
  waiters_.erase(it);
}

void StoreScope::Cancel(uint64_t id, StoreCalls* calls) {
  if (waiters_.count(id) == 0) return;
  AnswerWaiter(id, absl::CancelledError("the call was withdrawn"), calls);
}

void StoreScope::Expire(absl::Time now, StoreCalls* calls) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t id = deadlines_.begin()->second;
    AnswerWaiter(id,
                 absl::DeadlineExceededError(absl::StrCat(
                     "nobody has set ", NameKeys(waiters_.at(id).missing),
                     " before the deadline")),
                 calls);
  }
}

absl::Status StoreScope::OpenWatch(uint64_t id, absl::string_view key) {
  if (watches_.size() >= limits_.max_watches) {
    return LimitError("max_watches", limits_.max_watches, "close watches");
  }
  Watch& watch = watches_[id];
  watch.key = std::string(key);
  watch.changed = values_.count(watch.key) != 0;
  watches_of_key_[watch.key].insert(id);
  return absl::OkStatus();
}

StoreEvent StoreScope::EventOf(const std::string& key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return {"", true};
  return {it->second, false};
}

void StoreScope::NextEvent(uint64_t id, WatchDone done, StoreCalls* calls) {
  Watch& watch = watches_.at(id);
  if (!watch.changed) {
    watch.done = std::move(done);
    return;
  }
  watch.changed = false;
  calls->push_back(
      [done = std::move(done), event = EventOf(watch.key)] { done(event); });
}

void StoreScope::NotifyWatches(const std::string& key, StoreCalls* calls) {
  const auto of_key = watches_of_key_.find(key);
  if (of_key == watches_of_key_.end()) return;
  for (const uint64_t id : of_key->second) {
    Watch& watch = watches_.at(id);
    watch.changed = true;
    if (!watch.done) continue;
    WatchDone done = std::move(watch.done);
    watch.done = nullptr;
    NextEvent(id, std::move(done), calls);
  }
}

void StoreScope::CloseWatch(uint64_t id, StoreCalls* calls) {
  const auto it = watches_.find(id);
  if (it == watches_.end()) return;
  const auto of_key = watches_of_key_.find(it->second.key);
  of_key->second.erase(id);
  if (of_key->second.empty()) watches_of_key_.erase(of_key);
  if (it->second.done) {
    calls->push_back([done = std::move(it->second.done)] {
      done(absl::CancelledError("the watch was closed"));
    });
  }
  watches_.erase(it);
}

bool StoreScope::HasWatch(uint64_t id) const { return watches_.count(id) != 0; }

void StoreScope::End(const absl::Status& status, StoreCalls* calls) {
  while (!waiters_.empty()) {
    AnswerWaiter(waiters_.begin()->first, status, calls);
  }
  for (auto& [id, watch] : watches_) {
    if (!watch.done) continue;
    calls->push_back([done = std::move(watch.done), status] { done(status); });
  }
  watches_.clear();
  watches_of_key_.clear();
}

}  // namespace coxswain::server
