#ifndef COXSWAIN_BASE_ERROR_DETAIL_H_
#define COXSWAIN_BASE_ERROR_DETAIL_H_

#include "absl/strings/string_view.h"

namespace coxswain {

// The payload type URL under which an absl::Status carries its typed detail:
// a serialized coxswain.v1.ErrorDetail.
inline constexpr absl::string_view kErrorDetailUrl =
    "type.coxswain/coxswain.v1.ErrorDetail";

}  // namespace coxswain

#endif  // COXSWAIN_BASE_ERROR_DETAIL_H_
