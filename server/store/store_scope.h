#ifndef COXSWAIN_SERVER_STORE_STORE_SCOPE_H_
#define COXSWAIN_SERVER_STORE_STORE_SCOPE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/state/state_store.h"
#include "server/store/store_change.h"
#include "server/store/store_limits.h"
#include "server/store/store_listeners.h"
#include "server/store/store_records.h"

namespace coxswain::server {

// What a call of a scope leaves to do once the lock has been let go.
struct StoreWork {
  StoreCalls calls;
  // To be written; the outcome goes to Committed() under this number, unless
  // that is 0.
  std::vector<std::pair<uint64_t, StateBatch>> commits;
};

// The keys of one (job, generation): what is in it is durable. A change is
// made once its record is committed. Changes of one key wait for the one that
// is under way, and are then committed together, each with its own answer: so
// a change never builds on one that may still fail, and a counter that a
// thousand ranks add to costs a few commits.
//
// A part of StoreRoom, which holds its lock around every call: one thread at a
// time. Answers that a call causes are appended to `work`, never run.
class StoreScope {
 public:
  // `total_bytes` counts the keys and values of all scopes; it belongs to the
  // room and is not touched after End().
  StoreScope(const StoreLimits& limits, std::string table, size_t* total_bytes)
      : limits_(limits),
        table_(std::move(table)),
        total_bytes_(total_bytes),
        answers_(limits.max_remembered, limits.max_remembered_bytes),
        listeners_(limits, &values_) {}
  StoreScope(const StoreScope&) = delete;
  StoreScope& operator=(const StoreScope&) = delete;

  // What an earlier term has left; before anything else. DATA_LOSS.
  absl::Status Load(const std::vector<StateStore::Record>& records);

  void Change(const StoreRequestKey& request, StoreChange change,
              StoreChangeDone done, StoreWork* work);
  void Committed(uint64_t commit, const absl::Status& status, StoreWork* work);
  StoreListeners& listeners() { return listeners_; }

  // Answers everything that waits with `status`, and what is under way when it
  // is committed; `drop`: then deletes all records. Once, before the scope is
  // destroyed; nothing but Committed() is called after it.
  void End(const absl::Status& status, bool drop, StoreWork* work);

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
  void StartCommit(const std::string& key, StoreWork* work);
  Commit MakeCommit(const std::string& key, std::deque<Request>* requests);
  bool Fits(const Request& request, const Commit& commit) const;
  Outcome Execute(Request* request, Commit* commit);
  // The first answer to a repeated request, or null.
  const StoreAnswer* FindAnswer(const StoreRequestKey& request,
                                const Commit& commit) const;
  // Counts the effect before it is committed. RESOURCE_EXHAUSTED.
  absl::Status Reserve(const std::string& key, const StoreEffect& effect,
                       Commit* commit);
  void Add(int64_t bytes, int64_t keys);
  void Install(Commit* commit, StoreWork* work);
  void Answer(Outcome outcome, const absl::Status& status, StoreWork* work);
  void AnswerAll(Commit* commit, const absl::Status& status, StoreWork* work);
  void DropIfOver(StoreWork* work);

  const StoreLimits limits_;
  const std::string table_;
  StoreValues values_;
  // With what is reserved for commits under way.
  size_t bytes_ = 0;
  size_t keys_ = 0;
  size_t* const total_bytes_;
  StoreAnswers answers_;
  StoreListeners listeners_;
  std::optional<absl::Status> ended_;
  bool drop_ = false;    // when the last commit is over
  bool stored_ = false;  // whether there may be records
  uint64_t next_commit_ = 1;
  std::map<uint64_t, Commit> commits_;  // under way, at most one for each key
  // Of each key with a commit under way: the requests that wait for it.
  std::map<std::string, std::deque<Request>> waiting_;
  size_t change_count_ = 0;  // those that wait or are under way
  size_t change_bytes_ = 0;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORE_STORE_SCOPE_H_
