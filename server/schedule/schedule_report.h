#ifndef COXSWAIN_SERVER_SCHEDULE_SCHEDULE_REPORT_H_
#define COXSWAIN_SERVER_SCHEDULE_SCHEDULE_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "schedule/pipeline/timing.h"
#include "schedule/stall.h"
#include "server/membership/membership.h"

namespace coxswain::server {

// The state of a job's schedule, for display: the answer of `Schedule.Why`.

// A round that was decided.
struct RoundReport {
  std::string stream;
  int64_t round = 0;
  int64_t step = 0;
  bool commit = true;
  std::string reason;
  absl::Time decided;
  absl::Duration tickets_took;
  int last_rank = 0;
  int64_t plan_version = 0;
};

struct RankReport {
  MemberDescription member;
  bool outlier = false;
  std::optional<schedule::RankActivity::LastTicket> ticket;
  int micro_batches_in_window = 0;  // of that ticket
  int window = 0;
  absl::Duration idle;  // since a heartbeat or a ticket showed progress
  // In its pipeline; empty: it has none, or that is not known.
  std::string in;
  std::vector<int> waits_for;
};

// Where the ranks of a job are in its pipelines, and what a step looks like.
struct PipelineReport {
  struct Pass {
    std::string action;
    double begin = 0;
    double end = 0;
  };
  struct Rank {
    int lane = 0;  // the number of its list
    int64_t step = 0;
    std::string in;
    absl::Duration in_it;
    // When that begins, in its lane; nothing where its step is another one.
    std::optional<double> at;
    std::vector<int> waits_for;
    int waiters = 0;
  };
  std::string schedule;
  int micro_batches = 0;
  std::vector<std::string> findings;
  std::vector<Rank> ranks;
  // The passes of each list, of a step that is computed; empty: too many.
  std::vector<std::vector<Pass>> lanes;
  bool measured = false;  // with the times that the ranks have measured
};

// What a generation that runs waits for.
struct RankWait {
  std::vector<int> ranks;  // that hold it up; empty: all are at the same point
  absl::Time since;
  absl::Duration waited;
  std::string finding;
};

struct ScheduleReport {
  // Now, or when the generation ended; the infinite past: not known.
  absl::Time at;
  std::vector<std::string> findings;  // the most specific first
  std::vector<RankReport> ranks;      // by rank
  std::vector<RoundReport> history;   // the newest first
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_SCHEDULE_SCHEDULE_REPORT_H_
