#ifndef COXSWAIN_EXAMPLES_CUSTOM_HOOK_CYCLIC_H_
#define COXSWAIN_EXAMPLES_CUSTOM_HOOK_CYCLIC_H_

#include "absl/status/status.h"

namespace coxswain::examples {

// Lets specs name the hook `cyclic`. Every worker calls it once, before it
// names the hook or joins a job.
absl::Status RegisterCyclic();

}  // namespace coxswain::examples

#endif  // COXSWAIN_EXAMPLES_CUSTOM_HOOK_CYCLIC_H_
