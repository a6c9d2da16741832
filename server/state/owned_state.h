#ifndef COXSWAIN_SERVER_STATE_OWNED_STATE_H_
#define COXSWAIN_SERVER_STATE_OWNED_STATE_H_

#include <time.h>

#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/check.h"
#include "base/clock.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// Returns the clock of a lease that others count as well: like Clock::Real(),
// but its Now() goes on while the machine is suspended, as theirs does. Never
// destroyed.
inline const Clock* LeaseClock() {
  class BootClock : public Clock {
   public:
    absl::Time Now() const override {
      timespec since_boot = {};
      COXSWAIN_CHECK(clock_gettime(CLOCK_BOOTTIME, &since_boot) == 0);
      return absl::UnixEpoch() + absl::DurationFromTimespec(since_boot);
    }
    absl::Time WallTime() const override { return Clock::Real()->WallTime(); }
  };
  static const BootClock* const clock = new BootClock;
  return clock;
}

// A state store and the right to it, which no other coordinator has meanwhile.
// The destructor gives it back. Made by AcquireState. Thread-safe.
class OwnedState {
 public:
  virtual ~OwnedState() = default;

  virtual StateStore& store() = 0;

  // Returns whether the right can be lost at all; if not, Held() need not be
  // called.
  virtual bool can_be_lost() const { return true; }

  // Returns false once the right is lost, or may be by the clock; lost() is
  // raised by then. Cheap: to be called before each answer.
  virtual bool Held() = 0;

  // Raised, with ABORTED and the reason, when the right is lost. By then all
  // writes fail. Callbacks run on a thread of the store, or of a writer.
  virtual CancelSignal& lost() = 0;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_OWNED_STATE_H_
