#ifndef COXSWAIN_SERVER_STORE_STORE_SCOPE_H_
#define COXSWAIN_SERVER_STORE_STORE_SCOPE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/generation/scoped_component.h"
#include "server/state/state_store.h"
#include "server/store/store_change.h"
#include "server/store/store_limits.h"
#include "server/store/store_listeners.h"
#include "server/store/store_records.h"

namespace coxswain::server {

// The keys of one (job, generation): what is in it is durable. A change is
// made once its record is committed. Changes of one key wait for the one that
// is under way, and are then committed together, each with its own answer: so
// a change never builds on one that may still fail, and a counter that a
// thousand ranks add to costs a few commits.
//
// The Scope of KeyValueStore, which is a ScopedComponent.
class StoreScope {
 public:
  // `total_bytes` counts the keys and values of all scopes, under their lock.
  StoreScope(const StoreLimits& limits, std::string table,
             std::shared_ptr<size_t> total_bytes)
      : limits_(limits),
        table_(std::move(table)),
        total_bytes_(std::move(total_bytes)),
        answers_(limits.max_remembered, limits.max_remembered_bytes),
        listeners_(limits, &values_) {}
  StoreScope(const StoreScope&) = delete;
  StoreScope& operator=(const StoreScope&) = delete;

  absl::Status Load(const std::vector<StateStore::Record>& records,
                    const std::vector<int>& left);

  void Change(const StoreRequestKey& request, StoreChange change,
              StoreChangeDone done, ScopeWork* work);
  // Returns how many committed keys begin with `prefix`.
  int64_t CountKeys(absl::string_view prefix) const;
  StoreListeners& listeners() { return listeners_; }

  void Cancel(uint64_t call, ScopeWork* work) { listeners_.Cancel(call, work); }
  void Expire(absl::Time now, ScopeWork* work) { listeners_.Expire(now, work); }
  // What is being committed is answered after that, with `status` as well.
  void End(const absl::Status& status, ScopeWork* work);

 private:
  struct Request {
    StoreRequestKey key;
    StoreChange change;
    StoreChangeDone done;
  };
  struct Outcome {
    size_t bytes = 0;  // of the request
    // Set where the request is to be remembered.
    std::optional<RememberedAnswer> remembered;
    absl::StatusOr<StoreAnswer> answer;
    StoreChangeDone done;
  };
  // The changes of one key that are committed together.
  struct Commit {
    std::string key;
    std::optional<std::string> value;  // after them
    bool deletes = false;              // all of them do, or none
    bool changes = false;
    int64_t added_bytes = 0;
    int64_t added_keys = 0;
    std::vector<Outcome> outcomes;
    std::vector<uint64_t> forgotten;
    StateBatch batch;
    size_t answer_bytes = 0;
  };

  // The next commit of a key for which requests wait.
  void StartCommit(const std::string& key, ScopeWork* work);
  Commit MakeCommit(const std::string& key, std::deque<Request>* requests);
  bool Fits(const Request& request, const Commit& commit) const;
  Outcome Execute(Request* request, Commit* commit);
  // Returns the first answer to a repeated request, or null.
  const StoreAnswer* FindAnswer(const StoreRequestKey& request,
                                const Commit& commit) const;
  // Counts the effect before it is committed. RESOURCE_EXHAUSTED.
  absl::Status Reserve(const std::string& key, const StoreEffect& effect,
                       Commit* commit);
  void Add(int64_t bytes, int64_t keys);
  void Committed(Commit* commit, const absl::Status& status, ScopeWork* work);
  void Install(Commit* commit, ScopeWork* work);
  void Answer(Outcome outcome, const absl::Status& status, ScopeWork* work);
  void AnswerAll(Commit* commit, const absl::Status& status, ScopeWork* work);

  const StoreLimits limits_;
  const std::string table_;
  StoreValues values_;
  // With what is reserved for commits under way.
  size_t bytes_ = 0;
  size_t keys_ = 0;
  const std::shared_ptr<size_t> total_bytes_;
  StoreAnswers answers_;
  StoreListeners listeners_;
  std::optional<absl::Status> ended_;
  // Of each key with a commit under way, which is one: the requests that wait
  // for it.
  std::map<std::string, std::deque<Request>> waiting_;
  size_t change_count_ = 0;  // those that wait or are under way
  size_t change_bytes_ = 0;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORE_STORE_SCOPE_H_
