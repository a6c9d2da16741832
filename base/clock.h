#ifndef COXSWAIN_BASE_CLOCK_H_
#define COXSWAIN_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace coxswain {

// Where time comes from. Everything that decides by time takes a Clock, so
// that tests decide what time it is. Implementations are thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Returns a reading that never goes back, for leases and deadlines. Only
  // differences between two readings mean anything.
  virtual absl::Time Now() const = 0;

  // Returns the calendar time, for display: logs, checkpoint dates.
  virtual absl::Time WallTime() const = 0;

  // Returns the machine's clocks. Never destroyed.
  static Clock* Real();
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_CLOCK_H_
