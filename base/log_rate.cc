#include "base/log_rate.h"

#include <utility>

namespace coxswain {

LogRate::LogRate(absl::string_view event, const Clock* clock, Log log)
    : event_(event), clock_(clock), log_(log) {}

LogRate::~LogRate() {
  int64_t left_out = 0;
  {
    MutexLock lock(&mutex_);
    left_out = left_out_;
  }
  LogLeftOut(left_out);
}

int64_t LogRate::TurnLocked() {
  const absl::Time now = clock_->Now();
  if (now < period_end_) return 0;
  period_end_ = now + kPeriod;
  peers_.clear();
  return std::exchange(left_out_, 0);
}

void LogRate::LogLeftOut(int64_t lines) {
  if (lines == 0) return;
  log_("log_lines_left_out", {{"of", event_},
                              {"lines", lines},
                              {"reason",
                               "one is logged for each peer and "
                               "minute, and 100 for all peers"}});
}

void LogRate::Line(absl::string_view peer, LogFields fields) {
  int64_t left_out = 0;
  bool logged = false;
  {
    MutexLock lock(&mutex_);
    left_out = TurnLocked();
    logged = peers_.size() < kLines && peers_.emplace(peer).second;
    if (!logged) ++left_out_;
  }
  // A sink of the log must not be called under a lock.
  LogLeftOut(left_out);
  if (logged) log_(event_, fields);
}

absl::string_view HostOfPeer(absl::string_view peer) {
  return peer.substr(0, peer.rfind(':'));
}

}  // namespace coxswain
