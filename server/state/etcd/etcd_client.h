#ifndef COXSWAIN_SERVER_STATE_ETCD_ETCD_CLIENT_H_
#define COXSWAIN_SERVER_STATE_ETCD_ETCD_CLIENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/state/etcd/etcd.pb.h"

namespace coxswain::server {

// Makes calls to etcd, each of them once, to one of its members: the one that
// answered last, or after a failure the next. Calls block, until `timeout` at
// most. Thread-safe. Errors of etcd:
//   UNAVAILABLE          etcd cannot be reached, or did not answer in time: a
//                        change may have happened all the same
//   OUT_OF_RANGE         what is to be read as it once was, is compacted
//   RESOURCE_EXHAUSTED   etcd is full, or the request passes its limits
//   FAILED_PRECONDITION  this etcd cannot be used: it asks for a password, or
//                        does not speak version 3
class EtcdClient {
 public:
  // HOST:PORT of one member or more. Connects with the first call.
  explicit EtcdClient(const std::vector<std::string>& endpoints);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request, absl::Duration timeout);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(
      const etcdserverpb::TxnRequest& request, absl::Duration timeout);
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> GrantLease(
      const etcdserverpb::LeaseGrantRequest& request, absl::Duration timeout);
  absl::Status RevokeLease(int64_t id, absl::Duration timeout);
  // Returns how long the lease now lasts; 0 if there is none any more.
  absl::StatusOr<absl::Duration> KeepAlive(int64_t id, absl::Duration timeout);

 private:
  struct Member;

  // Calls `call(member, context)` at the member whose turn it is.
  template <typename Call>
  absl::Status CallOne(const char* what, absl::Duration timeout, Call call);

  std::vector<std::unique_ptr<Member>> members_;
  std::atomic<size_t> turn_{0};
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_ETCD_ETCD_CLIENT_H_
