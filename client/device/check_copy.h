#ifndef COXSWAIN_CLIENT_DEVICE_CHECK_COPY_H_
#define COXSWAIN_CLIENT_DEVICE_CHECK_COPY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace coxswain {

// INVALID_ARGUMENT for a copy that no runtime takes. For implementations of
// DeviceRuntime.
inline absl::Status CheckCopy(const void* to, const void* from, int64_t bytes) {
  if (bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a copy cannot have ", bytes, " bytes"));
  }
  if (bytes > 0 && (to == nullptr || from == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a copy of ", bytes, " bytes from or to null"));
  }
  return absl::OkStatus();
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_CHECK_COPY_H_
