#ifndef COXSWAIN_SERVER_SCHEDULE_PLAN_H_
#define COXSWAIN_SERVER_SCHEDULE_PLAN_H_

#include <cstdint>
#include <string>

namespace coxswain::server {

// When gradients are exchanged, and with which hook. Deterministic: a worker
// that knows the plan asks nothing while it trains.
struct Plan {
  int64_t version = 0;  // from 1; 0 is no plan
  int accumulation_steps = 1;
  std::string hook;
  int64_t compression_start_step = -1;  // -1: the hook's own option

  // Whether the content is the same, whatever the version.
  bool SameContent(const Plan& other) const {
    return accumulation_steps == other.accumulation_steps &&
           hook == other.hook &&
           compression_start_step == other.compression_start_step;
  }
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_SCHEDULE_PLAN_H_
