#ifndef COXSWAIN_CLIENT_STORE_STORE_CLIENT_H_
#define COXSWAIN_CLIENT_STORE_STORE_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/rpc/member_context_source.h"

namespace coxswain {

class MemberContext;  // client/rpc/member_context.h

// The value of a key after a compare-and-set.
struct CompareSetResult {
  std::string value;
  bool swapped = false;
};

// A change of a watched key.
struct StoreEvent {
  std::string value;
  bool deleted = false;
};

// A watch in progress; destroying it ends it, and no callback is called after
// that (so it must not be destroyed from within one).
class StoreWatch {
 public:
  virtual ~StoreWatch() = default;
};

// The coordinator's key-value store, as one member of one generation sees it:
// small values (1 MiB) by which workers find each other, dropped when the
// generation ends. Made by Session.
//
// Thread-safe. Calls block, also while the coordinator is restarted. Set, Add
// and CompareSet take effect once, however often a broken connection makes them
// repeat. Errors: as in proto/store.proto, UNAVAILABLE if the coordinator could
// not be reached for 30 s, ABORTED once the generation has ended.
class StoreClient {
 public:
  explicit StoreClient(std::shared_ptr<MemberContext> member)
      : member_(std::move(member)) {}

  absl::Status Set(absl::string_view key, absl::string_view value);

  // Returns the key's value; waits until it exists. With a timeout of 0, fails
  // with NOT_FOUND if it does not.
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout);

  // Adds to a decimal counter (missing counts as 0); returns the sum.
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount);

  // Sets `desired` if the value is `expected`, or if the key is missing and
  // `expected` is empty.
  absl::StatusOr<CompareSetResult> CompareSet(absl::string_view key,
                                              absl::string_view expected,
                                              absl::string_view desired);

  // Waits until all keys exist.
  absl::Status Wait(const std::vector<std::string>& keys,
                    absl::Duration timeout);

  // Deletes the key; returns whether it existed.
  absl::StatusOr<bool> DeleteKey(absl::string_view key);

  // Returns how many keys begin with `prefix`.
  absl::StatusOr<int64_t> CountKeys(absl::string_view prefix);

  // Reports the current value, if any, and every later change of a key (the
  // newest only, to a slow reader, or after a broken connection), then once the
  // end: ABORTED when the generation ends. Callbacks are called one at a time
  // on a thread of the watch, without a lock.
  std::unique_ptr<StoreWatch> Watch(
      absl::string_view key, std::function<void(const StoreEvent&)> on_event,
      std::function<void(const absl::Status&)> on_end);

 private:
  const std::shared_ptr<MemberContext> member_;
};

// The rendezvous of the ranks of one communicator: the store's keys under a
// prefix.
class StoreRendezvous : public RendezvousStore, public MemberContextSource {
 public:
  StoreRendezvous(std::shared_ptr<MemberContext> member, std::string prefix)
      : member_(member),
        store_(std::move(member)),
        prefix_(std::move(prefix)) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout) override;
  std::shared_ptr<MemberContext> member() const override { return member_; }

 private:
  const std::shared_ptr<MemberContext> member_;
  StoreClient store_;
  const std::string prefix_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_STORE_STORE_CLIENT_H_
