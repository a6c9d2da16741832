#ifndef COXSWAIN_SERVER_MEMBERSHIP_ROUND_H_
#define COXSWAIN_SERVER_MEMBERSHIP_ROUND_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"

namespace coxswain::server {

// A round collects the workers of the next generation. When it closes is a
// pure function of the time, of who waits, and of the options.
//
// Survivors are members of the last generation that were not lost and have not
// left for good: they hold the job's state and are on their way back, so that
// a round does not close without them as long as that is likely. A survivor is
// awaited until it is back or known to be gone: its launcher has reported its
// end, it has left, or a new process is there in its place.

struct RoundState {
  int present = 0;
  int survivors_present = 0;  // of those
  int survivors_awaited = 0;  // not there yet
  // When there were more workers than ever before in this round, or when it
  // began.
  absl::Time last_arrival;
  // The deadline of the worker that will wait no longer than all others.
  absl::Time first_deadline = absl::InfiniteFuture();
  // While no survivor has come back, and some are awaited, others do not go on
  // before then, and nobody gives up either: survivor_timeout of
  // MembershipOptions after the end.
  absl::Time survivors_until = absl::InfinitePast();
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
  kClose,   // those present, at most `max`, become the generation
  kRefuse,  // all are to be told how they differ
  kExpire,  // those whose deadline has passed are to be told
};

struct RoundVerdict {
  RoundDecision decision = RoundDecision::kWait;
  std::string reason;  // for the log, the status page and the error
};

RoundVerdict DecideRound(absl::Time now, const RoundState& state,
                         const RoundOptions& options);

// The same for display, with the names of the survivors that it waits for, by
// rank.
std::string DescribeRound(absl::Time now, const RoundState& state,
                          const RoundOptions& options,
                          const std::map<int, WorkerIdentity>& awaited);

// "host-a/0, host-a/1 and 14 more".
std::string NameWorkers(const std::vector<WorkerIdentity>& workers);

// Whether a running generation should make way for a larger one: a pure
// function. Each change costs the job a pause, so that workers that come one
// after the other are to be taken in together.

struct GrowthState {
  int world_size = 0;         // of the running generation
  int spares = 0;             // that wait for the next one
  absl::Time last_arrival;    // of a spare
  absl::Time began;           // the generation
  bool members_left = false;  // it ends already
};

struct GrowthOptions {
  int max = 1;
  absl::Duration settle;   // without another spare
  absl::Duration min_age;  // of the generation
};

// The age at which a generation may make way once this many that did so, one
// after the other, were followed by one with nobody new in it.
absl::Duration GrowthAge(absl::Duration min_age, int fruitless);

// Whether those that are still there hold up the others, of whom the first
// has made way at `since`, if any has.
bool HoldsUp(absl::Time now, std::optional<absl::Time> since,
             absl::Duration grace);

bool DecideGrowth(absl::Time now, const GrowthState& state,
                  const GrowthOptions& options);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_ROUND_H_
