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

// A round collects the workers of the next generation. When it closes is a pure
// function of the time, of the waiting workers, and of the options.
//
// Survivors are members of the last generation that were not lost and have not
// left for good: they hold the job's state and will join again, so that a round
// does not close without them as long as that is likely. A round waits for a
// survivor until it has joined or is known to be lost: its launcher has
// reported its end, it has left, or a new process has joined in its place.

struct RoundState {
  int present = 0;
  int survivors_present = 0;  // of those
  int survivors_awaited = 0;  // that have not joined yet
  // When the round last had more workers than before, or when it began.
  absl::Time last_arrival;
  // The earliest deadline of the waiting workers.
  absl::Time first_deadline = absl::InfiniteFuture();
  // While no survivor has joined, and some are awaited, the round neither
  // closes nor expires before then: survivor_timeout of MembershipOptions after
  // the end.
  absl::Time survivors_until = absl::InfinitePast();
  // Since when their manifests differ; never: they do not.
  absl::Time mismatch_since = absl::InfiniteFuture();
};

struct RoundOptions {
  int min = 1;
  int max = 1;  // min == max: a job of fixed size
  // With at least `min` present, how long to wait for one more.
  absl::Duration last_call;
  // A round that cannot become a generation stays open for so long, so that
  // workers which join late are refused with it.
  absl::Duration mismatch_settle = absl::ZeroDuration();
};

enum class RoundDecision {
  kWait,
  kClose,   // those present, at most `max`, become the generation
  kRefuse,  // all are to be answered with the difference
  kExpire,  // those whose deadline has passed are to be answered
};

struct RoundVerdict {
  RoundDecision decision = RoundDecision::kWait;
  std::string reason;  // for the log, the status page and the error
};

RoundVerdict DecideRound(absl::Time now, const RoundState& state,
                         const RoundOptions& options);

// Returns the same for display, with the names of the survivors that it waits
// for, by rank.
std::string DescribeRound(absl::Time now, const RoundState& state,
                          const RoundOptions& options,
                          const std::map<int, WorkerIdentity>& awaited);

// "host-a/0, host-a/1 and 14 more".
std::string NameWorkers(const std::vector<WorkerIdentity>& workers);

// Decides whether a running generation should end for a larger one: a pure
// function. Each change costs the job a pause, so that workers that come one
// after the other are to be taken in together. Until it may end, they catch up,
// which stops no member.

struct GrowthState {
  int world_size = 0;         // of the running generation
  int spares = 0;             // that wait for the next one
  absl::Time last_arrival;    // of a spare
  absl::Time began;           // the generation
  bool members_left = false;  // it ends already
};

struct GrowthOptions {
  int max = 1;
  absl::Duration settle;  // without another spare
  // Of the generation: until members send spares their state, and until it
  // ends. What a spare has taken is kept up with each step, so that the former
  // is not long before the latter.
  absl::Duration catch_up_age;
  absl::Duration min_age;
};

enum class GrowthDecision {
  kWait,
  kCatchUp,  // the spares may take the members' state
  kRegroup,  // likewise, and the generation may end for them
};

// Returns the age from which a generation may regroup, once this many regroups
// in a row have added no member.
absl::Duration GrowthAge(absl::Duration min_age, int fruitless);

// Returns whether members that still run hold up the others, of which the first
// has left for the next generation at `since`, if any has.
bool HoldsUp(absl::Time now, std::optional<absl::Time> since,
             absl::Duration grace);

GrowthDecision DecideGrowth(absl::Time now, const GrowthState& state,
                            const GrowthOptions& options);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_ROUND_H_
