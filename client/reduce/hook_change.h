#ifndef COXSWAIN_CLIENT_REDUCE_HOOK_CHANGE_H_
#define COXSWAIN_CLIENT_REDUCE_HOOK_CHANGE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"

namespace coxswain {

// What a change of hooks needs. All that is pointed to outlives the change.
struct HookChange {
  const std::vector<ParameterSpec>* parameters = nullptr;
  Communicator* communicator = nullptr;
  absl::Duration timeout;   // of each collective
  int64_t elements = 0;     // of the gradients
  bool carry_state = true;  // the new hook takes over the old one's state
  // Called with an error that leaves the ranks apart; returns the one to
  // return.
  std::function<absl::Status(const absl::Status&)> fail;
};

// Configures `next` to go on in place of `hook`, between steps, on all ranks or
// on none; collective. Each rank carries over its own state (Hook::SaveOwn and
// LoadOwn), of which nothing is sent. A hook that has no LoadOwn gets the
// merged state of all ranks, as from a checkpoint. Fails with
// RESOURCE_EXHAUSTED if that is larger than 64 MiB and 32 bytes per element of
// the gradients; with FAILED_PRECONDITION if the state is another kind of
// hook's; with INVALID_ARGUMENT for a hook that needs an averager. After these
// the old hook can go on.
absl::Status ChangeOver(Hook& hook, Hook& next, const HookChange& change);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_HOOK_CHANGE_H_
