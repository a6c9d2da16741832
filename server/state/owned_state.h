#ifndef COXSWAIN_SERVER_STATE_OWNED_STATE_H_
#define COXSWAIN_SERVER_STATE_OWNED_STATE_H_

#include "base/cancel_signal.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// A state store and the right to it, which no other coordinator has meanwhile.
// The destructor gives it back. Made by AcquireState. Thread-safe.
class OwnedState {
 public:
  virtual ~OwnedState() = default;

  virtual StateStore& store() = 0;

  // Whether the right can be lost at all; if not, Held() need not be asked.
  virtual bool can_be_lost() const { return true; }

  // False once the right is lost, or may be as far as the clock tells; lost()
  // is raised by then. Cheap: to be asked before each answer.
  virtual bool Held() = 0;

  // Raised, with ABORTED and the reason, when the right is lost. By then all
  // writes fail. Callbacks run on a thread of the store, or of a writer.
  virtual CancelSignal& lost() = 0;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_OWNED_STATE_H_
