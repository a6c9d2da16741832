#ifndef COXSWAIN_HOOKS_STAGED_HOOK_H_
#define COXSWAIN_HOOKS_STAGED_HOOK_H_

#include <memory>

#include "client/reduce/hook.h"

namespace coxswain {

// Returns a hook that has kernels for the CPU only, for buckets on a GPU too:
// each is copied to the host's memory, exchanged there by the hook as ever,
// through the same communicator, and the average copied back. That is logged
// once. Everything else is the hook's own, and its buckets in the CPU's memory
// go straight to it. The registry puts this around each hook whose row does not
// set on_device.
//
// Cost on a GPU: the bucket through the host link twice, where the communicator
// moves a GPU's memory what the hook sends through it twice more, the CPU's
// arithmetic, and host memory of the bucket's size while it is in flight.
// Numerics: the hook's.
//
// An exchange takes two calls of Advance more than the hook's own. The hook's
// Prepare is called in the second one, once the gradients are there; in index
// order, since that is the order of second calls in the reducer.
std::unique_ptr<Hook> MakeStagedHook(std::unique_ptr<Hook> inner);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_STAGED_HOOK_H_
