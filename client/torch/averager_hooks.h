#ifndef COXSWAIN_CLIENT_TORCH_AVERAGER_HOOKS_H_
#define COXSWAIN_CLIENT_TORCH_AVERAGER_HOOKS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/reduce/averager.h"
#include "client/reduce/hook.h"
#include "client/reduce/hook_state.h"

namespace coxswain::torch {

// A hook whose averager is there: the same as `hook`, which outlives it, but
// that nobody has to look after the averager any more. For a change of hooks.
std::unique_ptr<Hook> WithAverager(Hook* hook);

// The whole state of an averager on every rank; see GatherHookState.
absl::StatusOr<HookState> GatherAveragerState(Averager& averager,
                                              Communicator& communicator,
                                              int64_t max_bytes,
                                              absl::Duration timeout);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_AVERAGER_HOOKS_H_
