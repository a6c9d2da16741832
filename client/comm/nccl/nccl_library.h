#ifndef COXSWAIN_CLIENT_COMM_NCCL_NCCL_LIBRARY_H_
#define COXSWAIN_CLIENT_COMM_NCCL_NCCL_LIBRARY_H_

#include "absl/status/statusor.h"
#include "client/comm/nccl/nccl_api.h"

namespace coxswain {

// Returns NCCL as this process finds it, loaded by the first call and kept to
// the process's end: the file that COXSWAIN_NCCL_LIBRARY names; otherwise
// libnccl.so.2 where the loader looks, and then beside the CUDA toolkit that
// this was built with. Needs no GPU. Thread-safe. Fails with
//   UNIMPLEMENTED        this build has no NCCL
//   NOT_FOUND            no library; what was tried, and why that failed
//   FAILED_PRECONDITION  one that is older than 2.18, or lacks a call
absl::StatusOr<NcclApi*> LoadNccl();

// For tests: makes LoadNccl return `api` from now on, which outlives its users;
// null restores the library.
void UseNccl(NcclApi* api);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_NCCL_LIBRARY_H_
