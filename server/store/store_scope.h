#ifndef COXSWAIN_SERVER_STORE_STORE_SCOPE_H_
#define COXSWAIN_SERVER_STORE_STORE_SCOPE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain::server {

// What one scope of the store may hold. All of it is under the control of
// peers, so all of it has a bound.
struct StoreLimits {
  size_t max_key_bytes = 1024;
  size_t max_value_bytes = 1 << 20;
  size_t max_keys = 1 << 16;
  size_t max_bytes = 256 << 20;  // keys and values together
  // Keys and values of all generations of all jobs together.
  size_t max_total_bytes = size_t{1} << 30;
  size_t max_waiting_calls = 1 << 14;
  size_t max_watches = 1 << 12;
  size_t max_wait_keys = 1024;  // keys of one Wait
  // Answers kept for repeated requests. A retry comes within seconds, so this
  // needs to cover the requests of a few seconds only.
  size_t max_remembered = 1 << 13;
  size_t max_remembered_bytes = 16 << 20;
  absl::Duration max_timeout = absl::Hours(24);
};

struct CompareSetResult {
  std::string value;  // what stands after the call
  bool swapped = false;
};

struct StoreEvent {
  std::string value;
  bool deleted = false;
};

// Callbacks to run once the lock has been let go.
using StoreCalls = std::vector<std::function<void()>>;

// The keys, waiting calls and watches of one (job, generation). A part of
// StoreRoom, which holds its lock around every call: one thread at a time.
// Answers that a call causes are appended to `calls`, never run.
class StoreScope {
 public:
  using GetDone = std::function<void(absl::StatusOr<std::string>)>;
  using WatchDone = std::function<void(absl::StatusOr<StoreEvent>)>;
  // Operation, incarnation, request id.
  using RequestKey = std::tuple<char, uint64_t, uint64_t>;

  // `total_bytes` counts the keys and values of all scopes; it belongs to the
  // room and must outlive the scope.
  StoreScope(const StoreLimits& limits, size_t* total_bytes)
      : limits_(limits), total_bytes_(total_bytes) {}
  ~StoreScope() { *total_bytes_ -= bytes_; }
  StoreScope(const StoreScope&) = delete;
  StoreScope& operator=(const StoreScope&) = delete;

  absl::Status Set(const RequestKey& request, absl::string_view key,
                   absl::string_view value, StoreCalls* calls);
  absl::StatusOr<int64_t> Add(const RequestKey& request, absl::string_view key,
                              int64_t amount, StoreCalls* calls);
  absl::StatusOr<CompareSetResult> CompareSet(const RequestKey& request,
                                              absl::string_view key,
                                              absl::string_view expected,
                                              absl::string_view desired,
                                              StoreCalls* calls);
  bool Delete(const RequestKey& request, absl::string_view key,
              StoreCalls* calls);

  // Answers with the value of the first key once all exist. True if it waits.
  bool Wait(uint64_t id, std::vector<std::string> keys, absl::Time deadline,
            bool answer_at_once, GetDone done, StoreCalls* calls);
  // Nothing happens if the call does not wait (any more).
  void Cancel(uint64_t id, StoreCalls* calls);

  absl::Status OpenWatch(uint64_t id, absl::string_view key);
  // The watch must exist.
  void NextEvent(uint64_t id, WatchDone done, StoreCalls* calls);
  void CloseWatch(uint64_t id, StoreCalls* calls);

  bool HasWatch(uint64_t id) const;

  void Expire(absl::Time now, StoreCalls* calls);
  // Answers everything that waits with `status`. The scope is dead after it.
  void End(const absl::Status& status, StoreCalls* calls);

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
  struct Answer {
    int64_t number = 0;  // Add: the sum; Delete: whether there was a key
    CompareSetResult compare_set;
  };

  const Answer* Remembered(const RequestKey& request) const;
  void Remember(const RequestKey& request, Answer answer);
  absl::Status Put(absl::string_view key, absl::string_view value,
                   StoreCalls* calls);
  void NotifyWatches(const std::string& key, StoreCalls* calls);
  StoreEvent EventOf(const std::string& key) const;
  // Removes the waiter and appends its answer.
  void AnswerWaiter(uint64_t id, absl::StatusOr<std::string> answer,
                    StoreCalls* calls);

  const StoreLimits limits_;
  std::map<std::string, std::string, std::less<>> values_;
  size_t bytes_ = 0;
  size_t* const total_bytes_;
  std::map<uint64_t, Waiter> waiters_;
  std::map<std::string, std::set<uint64_t>, std::less<>> waiters_of_key_;
  std::set<std::pair<absl::Time, uint64_t>> deadlines_;
  std::map<uint64_t, Watch> watches_;
  std::map<std::string, std::set<uint64_t>, std::less<>> watches_of_key_;
  std::map<RequestKey, Answer> answers_;
  std::deque<RequestKey> answer_order_;
  size_t answer_bytes_ = 0;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORE_STORE_SCOPE_H_
