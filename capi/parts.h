#ifndef COXSWAIN_CAPI_PARTS_H_
#define COXSWAIN_CAPI_PARTS_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "capi/coxswain.h"
#include "client/device/tensor.h"
#include "client/elastic/catch_up/catch_up_target.h"

namespace coxswain::capi {

// Returns parts of a state as the library has them. Fails with
// INVALID_ARGUMENT, naming the argument, if one makes no sense.
absl::StatusOr<std::vector<CatchUpTarget::Part>> PartsOf(
    const cx_part* parts, size_t count, absl::string_view argument);
absl::StatusOr<std::vector<Span>> SpansOf(const cx_part* parts, size_t count,
                                          absl::string_view argument);

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_PARTS_H_
