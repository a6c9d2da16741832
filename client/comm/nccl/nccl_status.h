#ifndef COXSWAIN_CLIENT_COMM_NCCL_NCCL_STATUS_H_
#define COXSWAIN_CLIENT_COMM_NCCL_NCCL_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/comm/nccl/nccl_api.h"

namespace coxswain {

// Returns `result` as a status, whose message begins with `where` and ends with
// NCCL's description of its last error. OK for
// kSuccess and for kInProgress.
//   UNAVAILABLE          a peer or the system between failed
//   INVALID_ARGUMENT     NCCL refused the arguments
//   FAILED_PRECONDITION  NCCL was used in a way that it forbids
//   INTERNAL             CUDA failed below it, or NCCL itself
absl::Status NcclStatus(absl::string_view where, NcclResult result,
                        NcclApi* api, NcclComm comm);

// Returns "2.28.9" for 22809.
std::string NcclVersionText(int version);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_NCCL_STATUS_H_
