#include "client/reduce/reducer_options.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace coxswain {

absl::Status CheckReducerOptions(const ReducerOptions& options) {
  if (!(options.max_norm >= 0) || std::isinf(options.max_norm)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_norm must be 0 (no clipping) or more, got ", options.max_norm));
  }
  if (!options.on_average) return absl::OkStatus();
  if (options.max_norm > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_norm=", options.max_norm,
        " needs the gradients of the whole step before the first one is used, "
        "so it does not go with an optimizer step per bucket; drop one"));
  }
  if (options.find_unused_parameters) {
    return absl::InvalidArgumentError(
        "find_unused_parameters tells at the end of the step which parameters "
        "no rank used, so it does not go with an optimizer step per bucket; "
        "drop one");
  }
  return absl::OkStatus();
}

}  // namespace coxswain
