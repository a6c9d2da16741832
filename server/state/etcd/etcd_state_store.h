#ifndef COXSWAIN_SERVER_STATE_ETCD_ETCD_STATE_STORE_H_
#define COXSWAIN_SERVER_STATE_ETCD_ETCD_STATE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "server/state/etcd/etcd_client.h"
#include "server/state/etcd/etcd_keys.h"
#include "server/state/etcd/etcd_leadership.h"
#include "server/state/owned_state.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// The StateStore of the coordinator that leads, in etcd. Each batch is one
// transaction, on the condition that this coordinator still leads.
//
// An answer of etcd can be lost, whether the request was or not. So each
// transaction also writes a mark, on the condition that the mark before it is
// the last one: repeated, it takes effect once, and a delayed copy cannot take
// effect after later ones. Apply repeats it until the result is known, or until
// the lead is lost; an etcd that cannot be reached for a moment delays it.
//
// Thread-safe; one Apply at a time.
class EtcdStateStore : public StateStore, public OwnedState {
 public:
  // Waits until this coordinator leads; see EtcdLeadership::Campaign.
  static absl::StatusOr<std::unique_ptr<EtcdStateStore>> Open(
      const EtcdOptions& options, CancelSignal* cancel,
      const EtcdLeadership::OnWait& on_wait);

  // A transaction may hold many others; all of it has to fit into a request of
  // etcd's default size, 1.5 MiB.
  Limits limits() const override { return {2000, kMaxBytes}; }

  absl::StatusOr<std::string> Get(absl::string_view table,
                                  absl::string_view key) const override;
  absl::StatusOr<std::vector<Record>> List(
      absl::string_view table) const override;
  absl::StatusOr<std::vector<std::string>> Tables(
      absl::string_view prefix) const override;
  absl::Status Apply(const StateBatch& batch) override;

  StateStore& store() override { return *this; }
  bool Held() override { return leadership_->Held(); }
  CancelSignal& lost() override { return leadership_->lost(); }

 private:
  EtcdStateStore(const EtcdOptions& options, std::unique_ptr<EtcdClient> client,
                 std::unique_ptr<EtcdLeadership> leadership);

  // Repeats a read that has failed, until the lead is lost.
  absl::StatusOr<etcdserverpb::RangeResponse> Read(
      const etcdserverpb::RangeRequest& request) const;
  etcdserverpb::TxnRequest RequestFor(const StateBatch& batch,
                                      const std::string& mark) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns OK, or why the transaction has not taken effect and never will.
  absl::Status Outcome(const etcdserverpb::TxnResponse& response,
                       const std::string& mark)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Commit(const etcdserverpb::TxnRequest& request,
                      const std::string& mark)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same, of one that etcd has refused, where a copy of an earlier attempt
  // may still be on its way to etcd.
  absl::Status OutcomeOfRefused(const absl::Status& refusal,
                                const std::string& mark, bool maybe_under_way)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Changes the mark, so that no copy of the transaction of `mark` can take
  // effect any more. Returns true if it has taken effect already, and an error
  // if this is to be tried again.
  absl::StatusOr<bool> Fence(const std::string& mark)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string NewMark() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const EtcdOptions options_;
  const EtcdKeys keys_;
  const std::unique_ptr<EtcdClient> client_;
  const std::unique_ptr<EtcdLeadership> leadership_;

  Mutex mutex_;
  uint64_t marks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string fence_ ABSL_GUARDED_BY(mutex_);  // the mark of one that is tried
  // Of the key of marks, when it was changed last.
  int64_t commit_revision_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_ETCD_ETCD_STATE_STORE_H_
