#ifndef COXSWAIN_SERVER_OPEN_STATE_H_
#define COXSWAIN_SERVER_OPEN_STATE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "server/state/owned_state.h"

namespace coxswain::server {

// Where the state is: one of the two.
struct StateLocation {
  std::string folder;  // of an SQLite file

  std::vector<std::string> etcd_endpoints;  // HOST:PORT
  std::string etcd_prefix;                  // ends with a slash

  bool is_etcd() const { return !etcd_endpoints.empty(); }
};

// Reads sqlite:DIR, or etcd://HOST:PORT[,HOST:PORT...][/PREFIX]. The prefix is
// "coxswain" by default. Fails with INVALID_ARGUMENT, describing what is wrong.
absl::StatusOr<StateLocation> ParseStateLocation(absl::string_view text);

struct AcquireOptions {
  // Of etcd only: the name of this coordinator, for display; and how long a
  // leader stays one without renewing its lease.
  std::string name;
  absl::Duration leader_lease = absl::Seconds(5);
  // Called when the leader that this coordinator waits for changes. An empty
  // leader: the state cannot be reached, and `trouble` has the reason.
  std::function<void(const std::string& leader, const absl::Status& trouble)>
      on_wait;
  CancelSignal* cancel = nullptr;     // may be null
  const Clock* clock = LeaseClock();  // outlives the state

  absl::Status Validate() const;
};

// Makes the folder of a state, with those above it: it and what is synced in it
// survive a crash. OK if it exists. UNAVAILABLE if it cannot be made.
absl::Status MakeStateFolder(const std::string& folder);

// Opens the state, and makes it this coordinator's own: in etcd, it waits until
// no other one leads. An SQLite file in use by another is UNAVAILABLE at once.
//   INVALID_ARGUMENT     an option is out of range
//   FAILED_PRECONDITION, DATA_LOSS
//                        the state cannot be used, and was left as it is
//   UNAVAILABLE          the file is in use, or cannot be opened
//   the status of `cancel` when that is raised
absl::StatusOr<std::unique_ptr<OwnedState>> AcquireState(
    const StateLocation& location, const AcquireOptions& options);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_OPEN_STATE_H_
