#ifndef COXSWAIN_CLIENT_CHECKPOINT_HOOK_CUT_H_
#define COXSWAIN_CLIENT_CHECKPOINT_HOOK_CUT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/checkpoint/hook_parameters.h"
#include "client/reduce/hook_state.h"

// The state of a hook, cut for ranks that have other parts of the model than
// those that saved it: other stages of a pipeline, other parts of its tensors.
// Pure functions.

namespace coxswain {

// The option of a state in which some hooks have their parameters, in words.
inline constexpr char kHookParametersOption[] = "parameters";

// Returns whether a tensor of a merged state is of the ranks' errors, by its
// kind: "error", one that begins with "error/", or is listed in the state's
// option "own_kinds", with commas.
bool IsErrorKind(const std::string& kind, const HookState& state);

// Returns whether they have elements of the whole model in common.
bool Overlap(const std::vector<HookParameter>& a,
             const std::vector<HookParameter>& b);

// What the ranks that had one part of the model saved together: a state that
// MergeHookStates has joined.
struct PartState {
  std::vector<HookParameter> parameters;
  HookState state;
};

struct HookCut {
  HookState state;
  // "q of layer.weight": what was saved, and is for no such box.
  std::vector<std::string> dropped;
};

// Returns the state of a hook with parameters `to`, from those of all parts
// that have elements of them.
//
// Errors (IsErrorKind) in their parameter's shape are numbers of its elements,
// and are cut along the boxes, bit by bit. Elements that no part has an error
// of are zero. All else, such as factors, is of all of a rank's parameter: it
// stays where some part had the same box, and is dropped otherwise.
//
// Where several parts have the same, as replicated parameters, that of the
// first counts. The option "parameters" is that of the first, too: it is the
// caller's to replace. Fails with FAILED_PRECONDITION for states that do not
// belong together.
absl::StatusOr<HookCut> CutHookState(const std::vector<PartState>& from,
                                     const std::vector<HookParameter>& to);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_HOOK_CUT_H_
