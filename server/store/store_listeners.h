#ifndef COXSWAIN_SERVER_STORE_STORE_LISTENERS_H_
#define COXSWAIN_SERVER_STORE_STORE_LISTENERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/generation/scoped_component.h"
#include "server/store/store_limits.h"

namespace coxswain::server {

struct StoreEvent {
  std::string value;
  bool deleted = false;
};

using StoreValues = std::map<std::string, std::string, std::less<>>;

// The waiting calls and the watches of the keys of one generation. A part of
// StoreScope: one thread at a time. Answers that a call causes are appended to
// `work`, never run; nothing is committed.
class StoreListeners {
 public:
  using GetDone = std::function<void(absl::StatusOr<std::string>)>;
  using WatchDone = std::function<void(absl::StatusOr<StoreEvent>)>;

  // `values` outlives it.
  StoreListeners(const StoreLimits& limits, const StoreValues* values)
      : limits_(limits), values_(values) {}

  // Answers with the value of the first key once all exist. True if it waits.
  bool Wait(uint64_t id, std::vector<std::string> keys, absl::Time deadline,
            bool answer_at_once, GetDone done, ScopeWork* work);
  // Nothing happens if the call does not wait (any more).
  void Cancel(uint64_t id, ScopeWork* work);

  absl::Status OpenWatch(uint64_t id, absl::string_view key);
  // The watch must exist.
  void NextEvent(uint64_t id, WatchDone done, ScopeWork* work);
  void CloseWatch(uint64_t id, ScopeWork* work);
  bool HasWatch(uint64_t id) const { return watches_.count(id) != 0; }

  // After the key was set or deleted; `existed`: before.
  void Changed(const std::string& key, bool existed, ScopeWork* work);

  void Expire(absl::Time now, ScopeWork* work);
  // Answers everything that waits with `status`.
  void End(const absl::Status& status, ScopeWork* work);

 private:
  struct Waiter {
    std::vector<std::string> keys;
    std::set<std::string> missing;
    absl::Time deadline;
    GetDone done;
  };
  struct Watch {
    std::string key;
    bool changed = false;  // since the last event
    WatchDone done;        // set while a NextEvent waits
  };

  void NotifyWaiters(const std::string& key, bool exists, ScopeWork* work);
  void NotifyWatches(const std::string& key, ScopeWork* work);
  StoreEvent EventOf(const std::string& key) const;
  // Removes the waiter and appends its answer.
  void AnswerWaiter(uint64_t id, absl::StatusOr<std::string> answer,
                    ScopeWork* work);

  const StoreLimits limits_;
  const StoreValues* const values_;
  std::map<uint64_t, Waiter> waiters_;
  std::map<std::string, std::set<uint64_t>, std::less<>> waiters_of_key_;
  std::set<std::pair<absl::Time, uint64_t>> deadlines_;
  std::map<uint64_t, Watch> watches_;
  std::map<std::string, std::set<uint64_t>, std::less<>> watches_of_key_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORE_STORE_LISTENERS_H_
