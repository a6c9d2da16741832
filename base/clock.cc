#include "base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace coxswain {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() +
           absl::FromChrono(
               std::chrono::steady_clock::now().time_since_epoch());
  }
  absl::Time WallTime() const override { return absl::Now(); }
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* const clock = new RealClock;
  return clock;
}

}  // namespace coxswain
