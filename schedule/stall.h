#ifndef COXSWAIN_SCHEDULE_STALL_H_
#define COXSWAIN_SCHEDULE_STALL_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "schedule/pipeline/explain.h"

namespace coxswain::schedule {

struct KnownTicket {
  std::string stream;
  int64_t round = 0;
  int64_t step = 0;
  absl::Time at;
  bool decided = false;  // its round has its decision
  // Only its round is known: it came before the coordinator was restarted.
  bool inferred = false;
};

// The state of one rank, as its tickets and heartbeats have reported it.
struct RankActivity {
  using LastTicket = KnownTicket;

  bool live = true;  // false: it has left the job

  // Its last ticket, of whichever stream.
  std::optional<KnownTicket> ticket;

  // Its last heartbeat, as in v1.Heartbeat.
  int64_t step = 0;
  int64_t collective_sequence = 0;
  int64_t micro_batches = 0;
  int64_t rounds = 0;
  int bucket = 0;
  std::string activity;

  // When one of these numbers was last seen to change, or a ticket or a vote
  // came; before the first: when the generation began.
  absl::Time progressed;
  absl::Time last_contact;  // the last sign of life
};

// A round that some ranks wait in: StepAgreement::Missing() is not empty.
struct OpenRound {
  std::string stream;
  int64_t round = 0;
  int64_t step = 0;
  std::vector<int> missing;
  bool voting = false;  // votes are missing, not tickets
  absl::Time since;     // StepAgreement::timeout_start()
};

struct StallInput {
  std::vector<RankActivity> ranks;  // by rank
  std::vector<OpenRound> rounds;    // of all streams
  // A decision has stopped all ranks after the exchange that was under way.
  bool stopped = false;
  absl::Duration progress_timeout;
  // The earliest time from which on waits of its pipelines count: heartbeats
  // and those who look at them may have stood still before.
  absl::Time looked_since = absl::InfinitePast();
  // What the ranks of its pipelines wait for, if it has some.
  std::optional<pipeline::Explanation> pipeline;
  // Returns where a rank is, "pp 1, dp 0, tp 1; host-b/1", for messages; may be
  // null: they have its number alone.
  std::function<std::string(int rank)> place_of;
};

// Heartbeats come about every second, and ranks wait for each other for about
// as long in any job: what is shorter than this need not be reported.
inline constexpr absl::Duration kWorthReporting = absl::Seconds(3);

struct StallReport {
  // Nothing moves, and has not for progress_timeout.
  bool stalled = false;
  // The ranks to look at, ascending: also where it is not stalled (yet).
  std::vector<int> outliers;
  // Since when these ranks are waited for or, if there are none, no rank has
  // made progress; the infinite future: neither.
  absl::Time since = absl::InfiniteFuture();
  // A sentence each, the most specific first; never empty, at most 20.
  std::vector<std::string> findings;
  // If stalled: ABORTED with the first findings, and ScheduleMismatch as its
  // ErrorDetail.
  absl::Status error;
};

// Finds what a job waits for, and which ranks hold it up. A pure function.
//   Outliers are the ranks of a pipeline that others wait for while they
//   themselves wait for no rank, and have not moved for long; else the ranks
//   whose ticket or vote is missing while others wait; else those whose rounds,
//   collectives or bucket are behind the majority's; else, once it is stalled,
//   all that are idle. A collective that hangs is recognised by this: all
//   tickets have agreed, and yet no rank's numbers have changed for
//   progress_timeout. It is no stall before the first ticket, once a member has
//   left cleanly, or after a stop, if all ranks are at the same place: then no
//   rank waits for an exchange.
StallReport FindStall(absl::Time now, const StallInput& input);

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_STALL_H_
