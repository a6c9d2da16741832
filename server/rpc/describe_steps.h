#ifndef COXSWAIN_SERVER_RPC_DESCRIBE_STEPS_H_
#define COXSWAIN_SERVER_RPC_DESCRIBE_STEPS_H_

#include <cstdint>

#include "proto/rendezvous.pb.h"
#include "server/telemetry/telemetry.h"

namespace coxswain::server {

// An answer holds 50 to 60 bytes for each.
inline constexpr int64_t kMaxDescribedTimings = 16'384;
inline constexpr int kMaxDescribedSteps = 64;

// Adds to a job's description how its members spent their last `steps` steps,
// which of them are stragglers, and what they moved, by hook. Of jobs with many
// members fewer steps, one at least. Plain function.
void AddSteps(const Telemetry& telemetry, int steps, v1::JobDescription* job);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_DESCRIBE_STEPS_H_
