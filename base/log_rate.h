#ifndef COXSWAIN_BASE_LOG_RATE_H_
#define COXSWAIN_BASE_LOG_RATE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/mutex.h"

namespace coxswain {

// Logs an event that peers can cause as often as they like: one line for each
// peer in a period, and a bounded number for all peers together. Counts the
// other lines, and logs the count once the period is over, with the next line
// or when it is destroyed. Owned by the component that logs the event.
// Thread-safe.
//
// A peer that floods the log uses up its own line only. Peers without number,
// such as one host with many addresses, use up those of all, until the next
// period: the memory is bounded by the lines of one period, and no peer can
// silence the event for good.
class LogRate {
 public:
  static constexpr absl::Duration kPeriod = absl::Minutes(1);
  static constexpr size_t kLines = 100;  // of all peers in a period

  using Log = void (*)(absl::string_view event, LogFields fields);

  // `clock` outlives it.
  explicit LogRate(absl::string_view event, const Clock* clock = Clock::Real(),
                   Log log = LogWarning);
  ~LogRate();
  LogRate(const LogRate&) = delete;
  LogRate& operator=(const LogRate&) = delete;

  // `peer` is who caused the event, as far as a peer cannot choose it: an
  // address, a verified identity, a job. It may be followed by the kind of the
  // event where there are few.
  void Line(absl::string_view peer, LogFields fields);

 private:
  // Begins a period if the last one is over; returns the lines that were left
  // out in that one.
  int64_t TurnLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogLeftOut(int64_t lines);

  const std::string event_;
  const Clock* const clock_;
  const Log log_;
  Mutex mutex_;
  absl::Time period_end_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Of this period: peers that have had their line, and lines left out.
  std::set<std::string, std::less<>> peers_ ABSL_GUARDED_BY(mutex_);
  int64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The address in what gRPC calls a peer ("ipv4:10.0.0.1:1234"), without the
// port, which a client gets anew with each connection.
absl::string_view HostOfPeer(absl::string_view peer);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_LOG_RATE_H_
