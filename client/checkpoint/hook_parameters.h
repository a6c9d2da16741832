#ifndef COXSWAIN_CLIENT_CHECKPOINT_HOOK_PARAMETERS_H_
#define COXSWAIN_CLIENT_CHECKPOINT_HOOK_PARAMETERS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/reduce/bucket.h"
#include "client/shard/piece.h"

namespace coxswain {

// A parameter of a rank's hook, and which part of the whole model's it is.
struct HookParameter {
  ParameterSpec spec;  // as the rank has it
  ParameterBox box;
};

// Returns them, of a rank's parameters of which some are divided.
std::vector<HookParameter> HookParametersOf(
    const std::vector<ParameterSpec>& parameters, const ParameterBoxes& boxes);
std::vector<ParameterSpec> SpecsOf(
    const std::vector<HookParameter>& parameters);

// Return them as text, a line for each, "float32 [6,4] [0:3,0:4] name" with the
// shape of the whole and the box in it, and those of a text. Parse does not
// trust its input: it fails with DATA_LOSS.
std::string SerializeHookParameters(
    const std::vector<HookParameter>& parameters);
absl::StatusOr<std::vector<HookParameter>> ParseHookParameters(
    absl::string_view text);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_HOOK_PARAMETERS_H_
