#ifndef COXSWAIN_CLI_VERSION_H_
#define COXSWAIN_CLI_VERSION_H_

#include <string>

#include "absl/status/statusor.h"

namespace coxswain {

// `coxswain version`: the version of this program and of the libraries that
// decide what it speaks on the wire, and what it was built with for GPUs. Ends
// with a newline.
std::string VersionText();

// The part of it about GPUs: versions as CUDART_VERSION and NCCL_VERSION_CODE,
// 0 where it was built without; and the library's as it is found now.
std::string GpuVersionText(int cuda, int nccl_header,
                           const absl::StatusOr<int>& nccl_library);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_VERSION_H_
