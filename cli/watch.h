#ifndef COXSWAIN_CLI_WATCH_H_
#define COXSWAIN_CLI_WATCH_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "cli/options.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// Computes the step rates of jobs from repeated descriptions. One thread only.
class StepRates {
 public:
  void Note(const v1::DescribeResponse& description, absl::Time now);
  // Returns steps per second over the last ten seconds of this generation;
  // below 0: not known yet.
  double Of(const v1::JobDescription& job) const;
  // Returns the highest step that a member has finished.
  static int64_t StepOf(const v1::JobDescription& job);

 private:
  struct Seen {
    int64_t generation = 0;
    std::deque<std::pair<absl::Time, int64_t>> steps;
  };
  std::map<std::string, Seen> jobs_;
};

// Returns how the ranks of a job spent its last steps, as text for `coxswain
// status --watch`: a bar for each rank, as long as its mean step compared with
// the slowest, and a line for each hook with what it saved. Stragglers are
// marked, and come first if not all ranks fit. Empty if the coordinator knows
// of no step.
std::string StepBars(const v1::JobDescription& job);

// Return what one refresh shows. WatchPage: `coxswain status` with rates,
// StepBars and, if the plan has max_steps, the progress of each job.
// WatchLines: a line for each job.
std::string WatchPage(const v1::DescribeResponse& description,
                      const StepRates& rates, absl::Time wall_time);
std::string WatchLines(const v1::DescribeResponse& description,
                       const StepRates& rates, absl::Time wall_time);

struct TerminalSize {
  int rows = 24;
  int columns = 80;
};
// Returns the page for a terminal: drawn over the last one, cut to its size,
// without control characters of peers.
std::string WatchFrame(const std::string& page, const TerminalSize& size);

// What the command needs besides its options.
struct WatchWorld {
  std::function<absl::StatusOr<v1::DescribeResponse>()> describe;
  CancelSignal* stop = nullptr;  // ends it
  // Returns false once the reader has closed its end.
  std::function<bool(const std::string& text)> write;
  bool terminal = false;
  std::function<TerminalSize()> size;
  const Clock* clock = Clock::Real();
  absl::Duration interval = absl::Seconds(1);
};
// Describes and shows the jobs until `stop`. Fails with the error of the first
// call; later errors are shown and retried. Restores the terminal.
absl::Status WatchStatus(const WatchWorld& world);

// Runs `coxswain status --watch`, with the real coordinator and stdout.
absl::Status WatchStatus(const StatusOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_WATCH_H_
