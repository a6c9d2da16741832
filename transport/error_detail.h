#ifndef COXSWAIN_TRANSPORT_ERROR_DETAIL_H_
#define COXSWAIN_TRANSPORT_ERROR_DETAIL_H_

#include "absl/status/status.h"
#include "proto/types.pb.h"

namespace coxswain {

// The typed detail of an error: which ranks, which fence, which differences.
// It is a payload of the status (base/error_detail.h), which base/grpc_status
// carries over gRPC. Coordinator and workers write and read it here alone.
//
// All functions are pure and may be called from any thread.

// Returns the error's detail. Its kind is not set where the error has none, or
// one that cannot be read.
v1::ErrorDetail DetailOf(const absl::Status& error);

// Returns the error with this detail in place of its own. OK stays OK.
absl::Status WithDetail(absl::Status error, const v1::ErrorDetail& detail);

// Returns the error with the other one's detail, if that has one: for an error
// that describes the same in other words.
absl::Status WithDetailOf(const absl::Status& source, absl::Status error);

}  // namespace coxswain

#endif  // COXSWAIN_TRANSPORT_ERROR_DETAIL_H_
