#ifndef COXSWAIN_BASE_GRPC_STATUS_H_
#define COXSWAIN_BASE_GRPC_STATUS_H_

#include "absl/status/status.h"
#include "base/error_detail.h"
#include "grpcpp/support/status.h"

namespace coxswain {

// The only place where gRPC's statuses and ours are translated.
//
// The serialized coxswain.v1.ErrorDetail of an error travels in gRPC's
// error_details and is kept as the payload kErrorDetailUrl.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_GRPC_STATUS_H_
