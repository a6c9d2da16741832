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

// How fast jobs go, from looking at them again and again. One thread only.
class StepRates {
 public:
  void Note(const v1::DescribeResponse& description, absl::Time now);
  // Steps a second over the last ten seconds of this generation; below 0: not
  // known yet.
  double Of(const v1::JobDescription& job) const;
  // The highest step that a member has done.
  static int64_t StepOf(const v1::JobDescription& job);

 private:
  struct Seen {
    int64_t generation = 0;
    std::deque<std::pair<absl::Time, int64_t>> steps;
  };
  std::map<std::string, Seen> jobs_;
};

// How the ranks of a job spent its last steps, as text for `coxswain status
// --watch`: a bar for each rank, whose length is its mean step beside that of
// the slowest, and a line for each hook with what it saved. Stragglers are
// marked, and are there even where not all ranks have room. Empty: the
// coordinator knows of no step. Plain function.
std::string StepBars(const v1::JobDescription& job);

// What is shown of one look. The first is a page: `coxswain status`, with rates
// and StepBars and, where the plan has max_steps, how far each job is. The
// second is a line for each job.
std::string WatchPage(const v1::DescribeResponse& description,
                      const StepRates& rates);
std::string WatchLines(const v1::DescribeResponse& description,
                       const StepRates& rates, absl::Time wall_time);

struct TerminalSize {
  int rows = 24;
  int columns = 80;
};
// The page as a terminal gets it: drawn over the last one, what does not fit
// cut off, control characters of peers made harmless.
std::string WatchFrame(const std::string& page, const TerminalSize& size);

// What the command needs of the world.
struct WatchWorld {
  std::function<absl::StatusOr<v1::DescribeResponse>()> describe;
  CancelSignal* stop = nullptr;  // ends it
  // False: nobody reads it any more.
  std::function<bool(const std::string& text)> write;
  bool terminal = false;
  std::function<TerminalSize()> size;
  const Clock* clock = Clock::Real();
  absl::Duration interval = absl::Seconds(1);
};
// Until `stop`: looks and shows. An error of the first look ends it; later ones
// are shown, and it looks again. The terminal is left as it was found.
absl::Status WatchStatus(const WatchWorld& world);

// `coxswain status --watch`: the same with the real coordinator and stdout.
absl::Status WatchStatus(const StatusOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_WATCH_H_
