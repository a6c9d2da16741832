#ifndef COXSWAIN_SERVER_TELEMETRY_STEP_TIMING_H_
#define COXSWAIN_SERVER_TELEMETRY_STEP_TIMING_H_

#include <cmath>
#include <cstdint>

namespace coxswain::server {

// How a rank spent one step, in seconds: v1.StepTiming. Of single precision,
// because many are kept.
struct StepTiming {
  int64_t step = 0;
  int64_t payload_bytes = 0;
  int64_t wire_bytes = 0;
  float compute = 0;
  float wait = 0;
  float exchange = 0;

  float duration() const { return compute + wait + exchange; }

  // Whether a rank may say so: nothing is negative, infinite or not a number.
  bool Sensible() const {
    constexpr float kMostSeconds = 1e9;
    const auto sensible = [](float seconds) {
      return std::isfinite(seconds) && seconds >= 0 && seconds <= kMostSeconds;
    };
    return step >= 0 && payload_bytes >= 0 && wire_bytes >= 0 &&
           sensible(compute) && sensible(wait) && sensible(exchange);
  }
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_TELEMETRY_STEP_TIMING_H_
