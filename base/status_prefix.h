#ifndef COXSWAIN_BASE_STATUS_PREFIX_H_
#define COXSWAIN_BASE_STATUS_PREFIX_H_

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// Returns the error, with its details, with this text before its message. OK
// stays OK.
inline absl::Status WithPrefix(absl::string_view prefix,
                               const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status result(status.code(), absl::StrCat(prefix, status.message()));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    result.SetPayload(type, payload);
  });
  return result;
}

}  // namespace coxswain

#endif  // COXSWAIN_BASE_STATUS_PREFIX_H_
