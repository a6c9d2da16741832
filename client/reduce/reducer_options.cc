#include "client/reduce/reducer_options.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace coxswain {

void FollowPlan(const JobPlan& plan, int world_size, ReducerOptions* options) {
  options->uneven_inputs = plan.needs_header(world_size);
  options->end_at_first = plan.terms.uneven_data == UnevenData::kEndAtFirst;
  options->plan_version = plan.version;
}

absl::Status CheckReducerOptions(const ReducerOptions& options) {
  if (!(options.max_norm >= 0) || std::isinf(options.max_norm)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_norm must be 0 (no clipping) or more, got ", options.max_norm));
  }
  if (options.end_at_first && !options.uneven_inputs) {
    return absl::InvalidArgumentError(
        "end_at_first needs uneven_inputs, by which a rank hears that another "
        "one is out of data");
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
