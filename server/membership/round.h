#ifndef COXSWAIN_SERVER_MEMBERSHIP_ROUND_H_
#define COXSWAIN_SERVER_MEMBERSHIP_ROUND_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"

namespace coxswain::server {

// A round collects the workers of the next generation. When it closes is a
// pure function of the time, of who waits, and of the options.

struct RoundState {
  std::vector<WorkerIdentity> present;  // in order
  absl::Time last_arrival;
  // The deadline of the worker that will wait no longer than all others.
  absl::Time first_deadline;
  // Since when not all of them want the same; never: they do.
  absl::Time mismatch_since = absl::InfiniteFuture();
};

struct RoundOptions {
  int min = 1;
  int max = 1;  // min == max: a job of fixed size
  // With at least `min` present, how long to wait for one more.
  absl::Duration last_call;
  // A round that cannot become a generation is kept open for so long, so that
  // those who are on their way hear why as well.
  absl::Duration mismatch_settle = absl::ZeroDuration();
};

enum class RoundDecision {
  kWait,
  kClose,   // all who are present become the generation
  kRefuse,  // all are to be told how they differ
  kExpire,  // those whose deadline has passed are to be told
};

struct RoundVerdict {
  RoundDecision decision = RoundDecision::kWait;
  std::string reason;  // for the log, the status page and the error
};

RoundVerdict DecideRound(absl::Time now, const RoundState& state,
                         const RoundOptions& options);

// "host-a/0, host-a/1 and 14 more".
std::string NameWorkers(const std::vector<WorkerIdentity>& workers);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_ROUND_H_
