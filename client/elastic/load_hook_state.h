#ifndef COXSWAIN_CLIENT_ELASTIC_LOAD_HOOK_STATE_H_
#define COXSWAIN_CLIENT_ELASTIC_LOAD_HOOK_STATE_H_

#include "absl/status/status.h"
#include "client/elastic/elastic_run.h"
#include "client/reduce/hook.h"
#include "schedule/plan.h"

namespace coxswain {

// Gives a generation's hook, configured, the state to go on with, where there
// is one: what a training function does before its first step.
//
// The plan may have changed since the last generation. A hook that cannot go on
// from the other one's state, or is not to (hook_state=reset), begins without,
// which is logged; as the ranks have the same state but for their errors,
// all do alike. Errors of Hook::LoadOwn otherwise.
absl::Status LoadHookState(const ElasticGeneration& generation,
                           const schedule::Plan& plan, Hook* hook);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_LOAD_HOOK_STATE_H_
