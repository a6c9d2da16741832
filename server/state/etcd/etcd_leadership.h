#ifndef COXSWAIN_SERVER_STATE_ETCD_ETCD_LEADERSHIP_H_
#define COXSWAIN_SERVER_STATE_ETCD_ETCD_LEADERSHIP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/state/etcd/etcd_client.h"
#include "server/state/etcd/etcd_keys.h"
#include "server/state/owned_state.h"

namespace coxswain::server {

// Where a cluster of coordinators keeps its state in etcd, and how they agree
// on which of them leads.
struct EtcdOptions {
  std::vector<std::string> endpoints;  // HOST:PORT of one or more members
  // Of all keys; ends with a slash. Coordinators with one prefix are one
  // cluster.
  std::string prefix = "coxswain/";
  // The name of this coordinator, for display: what the others show as the
  // leader.
  std::string name;
  // A leader that has not renewed its lease for this long does not lead any
  // more. In whole seconds; etcd has a minimum, of about 1.5 times its election
  // timeout.
  absl::Duration lease = absl::Seconds(5);
  // Of one call; several fit into a lease.
  absl::Duration call_timeout = absl::Seconds(2);
  // How often a standby checks whether there is a leader.
  absl::Duration look_interval = absl::Milliseconds(200);
  const Clock* clock = LeaseClock();  // outlives the user
};

// The right of one coordinator to lead. The coordinator that creates the
// leader's key leads, for as long as the lease of that key is renewed, which a
// thread does. The revision in which the key was created identifies one period
// of leading: a transaction that compares it cannot come too late.
//
// By our own clock the lease ends no later than by etcd's: it is counted from
// before the request. So a process that was frozen notices the end without
// etcd. Thread-safe.
class EtcdLeadership {
 public:
  // Called when the leader that is waited for changes. Empty: etcd cannot be
  // reached, and `trouble` has the reason.
  using OnWait = std::function<void(const std::string& leader,
                                    const absl::Status& trouble)>;

  // Waits until this coordinator leads.
  //   FAILED_PRECONDITION  etcd cannot be used, or its content cannot
  //   the status of `cancel`, when that is raised (may be null)
  // While etcd is not reached it goes on trying. `client` outlives the result.
  static absl::StatusOr<std::unique_ptr<EtcdLeadership>> Campaign(
      const EtcdOptions& options, EtcdClient* client, CancelSignal* cancel,
      const OnWait& on_wait);

  // Releases the lead, if it was not lost: the next coordinator may lead at
  // once.
  ~EtcdLeadership();
  EtcdLeadership(const EtcdLeadership&) = delete;
  EtcdLeadership& operator=(const EtcdLeadership&) = delete;

  // Returns the revision in which the leader's key was created.
  int64_t create_revision() const { return create_revision_; }
  // Returns the revision of the key of commits that this leader has found; 0:
  // there was none.
  int64_t commit_revision() const { return commit_revision_; }

  // Returns how much of the lease is left; 0 or less once the lead is lost.
  absl::Duration Left();
  bool Held() { return Left() > absl::ZeroDuration(); }
  // Raised with ABORTED when the lead is lost.
  CancelSignal& lost() { return lost_; }
  void Lose(absl::string_view why);

 private:
  // What one read of etcd has returned.
  struct View {
    std::string leader;  // empty: there is no leader
    std::string format;  // empty: none was written
    int64_t format_revision = 0;
    int64_t commit_revision = 0;
  };

  EtcdLeadership(const EtcdOptions& options, EtcdClient* client)
      : options_(options), client_(client), keys_(options.prefix) {}

  // Returns whether it leads now; if not, sets `leader` to the one that does,
  // if there is one.
  absl::StatusOr<bool> LookAndTry(std::string* leader);
  absl::StatusOr<View> Look();
  // Returns false if another coordinator was faster.
  absl::StatusOr<bool> TryToLead(const View& view);
  absl::Status Grant();
  absl::StatusOr<bool> CreateKey(const View& view);
  void Revoke();
  void KeepAlive();
  // Renews the lease. Returns how long to wait until the next renewal.
  absl::Duration Renew();
  absl::Duration Interval() const { return ttl_ / 3; }

  const EtcdOptions options_;
  EtcdClient* const client_;
  const EtcdKeys keys_;

  // Set before the thread starts.
  int64_t lease_ = 0;
  absl::Duration ttl_;
  int64_t create_revision_ = 0;
  int64_t commit_revision_ = 0;

  bool trouble_ = false;  // the last renewal failed; the thread's own
  CancelSignal lost_;
  CancelSignal stop_;
  Mutex mutex_;
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_ETCD_ETCD_LEADERSHIP_H_
