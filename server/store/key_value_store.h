#ifndef COXSWAIN_SERVER_STORE_KEY_VALUE_STORE_H_
#define COXSWAIN_SERVER_STORE_KEY_VALUE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"
#include "server/generation/fence.h"
#include "server/generation/scoped_component.h"
#include "server/state/state_writer.h"
#include "server/store/store_scope.h"

namespace coxswain::server {

// A key-value store with the semantics of a c10d store: the small values by
// which workers find each other. Everything is scoped by (job, generation) and
// dropped when the generation ends. Keys and remembered answers are durable:
// a change is seen, and answered, once it is committed.
//
// Called by the Store service, with fences that a FenceValidator has admitted.
// A callback may run before the call has returned. Thread-safe.
//
// Every operation may answer with
//   INVALID_ARGUMENT    an empty key, or a missing request id
//   RESOURCE_EXHAUSTED  a limit is passed; the message names it
//   ABORTED             the generation has ended
//   UNAVAILABLE         the state cannot be written now, and nothing was
//                       changed; or the coordinator is stopping
class KeyValueStore : public ScopedComponent<StoreScope> {
 public:
  using SetDone = std::function<void(const absl::Status&)>;
  using AddDone = std::function<void(absl::StatusOr<int64_t>)>;
  using CompareSetDone = std::function<void(absl::StatusOr<CompareSetResult>)>;
  using DeleteDone = std::function<void(absl::StatusOr<bool>)>;
  using GetDone = std::function<void(absl::StatusOr<std::string>)>;
  using WaitDone = std::function<void(absl::Status)>;
  using WatchDone = std::function<void(absl::StatusOr<StoreEvent>)>;

  // `clock` and `state` must outlive the store.
  KeyValueStore(const StoreLimits& limits, const Clock* clock,
                StateWriter* state);
  ~KeyValueStore() override { Stop(); }

  // Set, Add, CompareSet and DeleteKey remember their last answers by request
  // id, also across a restart: a repeated request gets the first answer and
  // changes nothing. Errors change nothing and are not remembered.
  void Set(const Fence& fence, absl::string_view key, absl::string_view value,
           const SetDone& done);

  // The new value; a missing key counts as 0. FAILED_PRECONDITION if the value
  // is not a decimal number or the sum does not fit 64 bits.
  void Add(const Fence& fence, absl::string_view key, int64_t amount,
           const AddDone& done);

  // Sets `desired` if the value is `expected`, or if the key is missing and
  // `expected` is empty. NOT_FOUND if missing and `expected` is not empty.
  void CompareSet(const Fence& fence, absl::string_view key,
                  absl::string_view expected, absl::string_view desired,
                  const CompareSetDone& done);

  // Whether the key existed.
  void DeleteKey(const Fence& fence, absl::string_view key,
                 const DeleteDone& done);

  // Returns how many keys begin with `prefix`.
  absl::StatusOr<int64_t> CountKeys(const Fence& fence,
                                    absl::string_view prefix);

  // Answers with the value as soon as the key exists; NOT_FOUND at once if it
  // does not and `timeout` is 0; DEADLINE_EXCEEDED by the first Tick at or
  // after the deadline. Returns the name of the waiting call for Cancel, or 0
  // if it was answered already.
  CallId Get(const Fence& fence, absl::string_view key, absl::Duration timeout,
             const GetDone& done);

  // As Get, once all keys exist at the same time. Errors name missing keys.
  CallId Wait(const Fence& fence, const std::vector<std::string>& keys,
              absl::Duration timeout, WaitDone done);

  // Opens a watch of one key. A watch holds no values: a slow reader gets the
  // newest value only, and costs nothing.
  absl::StatusOr<CallId> OpenWatch(const Fence& fence, absl::string_view key);

  // Answers with the first event (the current value, if there is one), then
  // with each change since the last answer. At most one call at a time per
  // watch. ABORTED when the generation ends, CANCELLED by CloseWatch.
  void NextEvent(CallId watch, const WatchDone& done);
  void CloseWatch(CallId watch);

 private:
  std::unique_ptr<StoreScope> MakeScope(
      const std::string& job, Generation generation,
      const std::string& table) const override;
  absl::Status CheckRecord(const Record& record, int world_size) const override;

  absl::Status CheckKey(absl::string_view key) const;
  absl::Status CheckChange(const Fence& fence, const StoreChange& change) const;
  void Change(const Fence& fence, StoreChange change,
              const StoreChangeDone& done);
  CallId StartWait(const Fence& fence, const std::vector<std::string>& keys,
                   absl::Duration timeout, const GetDone& done);

  const StoreLimits limits_;
  const Clock* const clock_;
  // Of all scopes, under their lock.
  const std::shared_ptr<size_t> total_bytes_ = std::make_shared<size_t>(0);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORE_KEY_VALUE_STORE_H_
