#ifndef COXSWAIN_CLIENT_COMM_HOST_SPAN_H_
#define COXSWAIN_CLIENT_COMM_HOST_SPAN_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/comm/communicator.h"
#include "client/device/tensor.h"

namespace coxswain {

// INVALID_ARGUMENT unless `span` is in CPU memory; for CPU back ends.
inline absl::Status CheckOnHost(const Communicator& comm, const Span& span) {
  if (span.device.kind == Device::Kind::kCpu) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ", comm.backend(),
                   " back end moves CPU memory, and this is on a GPU"));
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_HOST_SPAN_H_
