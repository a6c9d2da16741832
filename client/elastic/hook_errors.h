#ifndef COXSWAIN_CLIENT_ELASTIC_HOOK_ERRORS_H_
#define COXSWAIN_CLIENT_ELASTIC_HOOK_ERRORS_H_

#include <cstdint>

#include "client/reduce/hook_state.h"

namespace coxswain {

// A hook's state (Hook::SaveOwn) has two parts: its errors, which are this
// rank's alone, tensors whose kind begins with "own_"; and what all ranks have
// alike.

// Returns a checksum of what all ranks have alike.
uint32_t SharedChecksum(const HookState& state);

// Returns `shared` with the errors of `own` in place of its own, in the order
// that SaveOwn gives, and the world size that these were saved with, where the
// hook keeps it. Without any errors, if the two are not of the same hook.
HookState WithErrorsOf(HookState shared, const HookState& own);

// Returns whether the errors mean something only together with those of all
// other ranks: the hook's mode=pytorch.
bool ErrorsBelongTogether(const HookState& state);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_HOOK_ERRORS_H_
