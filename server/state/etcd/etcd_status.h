#ifndef COXSWAIN_SERVER_STATE_ETCD_ETCD_STATUS_H_
#define COXSWAIN_SERVER_STATE_ETCD_ETCD_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace coxswain::server {

// The only place where etcd's errors are translated.
//   UNAVAILABLE          etcd cannot be reached, or did not answer in time: a
//                        change may have happened all the same
//   OUT_OF_RANGE         what is to be read as it once was, is compacted
//   RESOURCE_EXHAUSTED   etcd is full, or the request passes its limits
//   FAILED_PRECONDITION  this etcd cannot be used: it asks for a password, or
//                        does not speak version 3
// `what` was tried at `endpoint`.
absl::Status FromEtcdStatus(const grpc::Status& status, absl::string_view what,
                            absl::string_view endpoint);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_ETCD_ETCD_STATUS_H_
