#ifndef COXSWAIN_HOOKS_NOOP_H_
#define COXSWAIN_HOOKS_NOOP_H_

#include <memory>
#include <string>

#include "client/reduce/hook.h"
#include "hooks/hook_row.h"

namespace coxswain {

// `noop`: nothing travels, each rank keeps its own gradients as they are. For
// measuring how fast training would be if communication were free: the ranks
// diverge from the first step.
//
// Cost: none. Its state is the number of steps.
std::unique_ptr<Hook> MakeNoopHook(std::string spec);

HookRow NoopRow();

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_NOOP_H_
