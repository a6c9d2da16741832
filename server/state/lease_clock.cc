#include "server/state/lease_clock.h"

#include <time.h>

#include "absl/time/time.h"
#include "base/check.h"

namespace coxswain::server {
namespace {

class BootClock : public Clock {
 public:
  absl::Time Now() const override {
    timespec since_boot = {};
    COXSWAIN_CHECK(clock_gettime(CLOCK_BOOTTIME, &since_boot) == 0);
    return absl::UnixEpoch() + absl::DurationFromTimespec(since_boot);
  }
  absl::Time WallTime() const override { return Clock::Real()->WallTime(); }
};

}  // namespace

const Clock* LeaseClock() {
  static const BootClock* const clock = new BootClock;
  return clock;
}

}  // namespace coxswain::server
