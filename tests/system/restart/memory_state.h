#ifndef COXSWAIN_TESTS_SYSTEM_RESTART_MEMORY_STATE_H_
#define COXSWAIN_TESTS_SYSTEM_RESTART_MEMORY_STATE_H_

#include "base/cancel_signal.h"
#include "server/state/memory_state_store.h"
#include "server/state/owned_state.h"

namespace coxswain {

// A state that outlives the coordinators of a test, which can look into it.
class MemoryState : public server::OwnedState {
 public:
  server::MemoryStateStore& store() override { return store_; }
  bool can_be_lost() const override { return false; }
  bool Held() override { return true; }
  CancelSignal& lost() override { return lost_; }

 private:
  server::MemoryStateStore store_;
  CancelSignal lost_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_RESTART_MEMORY_STATE_H_
