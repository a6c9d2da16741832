#ifndef COXSWAIN_CLIENT_ELASTIC_LOAD_HOOK_STATE_H_
#define COXSWAIN_CLIENT_ELASTIC_LOAD_HOOK_STATE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/elastic/elastic_run.h"
#include "client/reduce/hook.h"
#include "client/reduce/hook_state.h"
#include "schedule/plan.h"

namespace coxswain {

// Fails with UNIMPLEMENTED for a hook that works with an averager, once all
// ranks of the generation have come to it: the first that left would end the
// generation of those that still recover, and they would wait for another in
// vain.
absl::Status CheckElasticHook(const ElasticGeneration& generation,
                              const Hook& hook);

// Loads the state that a generation's hook continues from, if there is one,
// into the configured hook: the first action of a training function.
//
// The plan may have changed since the last generation. A hook that cannot
// continue from the other one's state, or must not (hook_state=reset), begins
// without, which is logged, and a warning of generation->recovery; as the ranks
// have the same state but for their errors, all decide alike. Fails as
// Hook::LoadOwn otherwise.
absl::Status LoadHookState(ElasticGeneration* generation,
                           const schedule::Plan& plan, Hook* hook);
// The same, of a state and the scale of its errors. Returns the warning; empty:
// the hook goes on with the state.
absl::StatusOr<std::string> LoadHookState(const HookState& state,
                                          double error_scale,
                                          const schedule::Plan& plan,
                                          Hook* hook);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_LOAD_HOOK_STATE_H_
