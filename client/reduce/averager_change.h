#ifndef COXSWAIN_CLIENT_REDUCE_AVERAGER_CHANGE_H_
#define COXSWAIN_CLIENT_REDUCE_AVERAGER_CHANGE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/reduce/averager.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "client/reduce/hook_state.h"

namespace coxswain {

// For owners of a hook and its averager that change both.

// Returns a hook that equals `hook`, which outlives it, except that it needs no
// averager: its owner has one. For Reducer::ChangeHook, which refuses a hook
// that needs one.
std::unique_ptr<Hook> WithAverager(Hook* hook);

// Returns the whole state of an averager on every rank; see GatherHookState.
absl::StatusOr<HookState> GatherAveragerState(
    Averager& averager, Communicator& communicator,
    const std::vector<ParameterSpec>& parameters, absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_AVERAGER_CHANGE_H_
