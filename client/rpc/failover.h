#ifndef COXSWAIN_CLIENT_RPC_FAILOVER_H_
#define COXSWAIN_CLIENT_RPC_FAILOVER_H_

#include <atomic>
#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "base/clock.h"
#include "client/rpc/coordinator_stub.h"

namespace coxswain {

// Chooses one of several coordinators, of which one leads and the others do not
// listen: the one that answers, until a call or a stream to it ends with
// UNAVAILABLE; then the next. Thread-safe.
class Failover {
 public:
  // There are `count` of them, at least one. `connected` returns whether
  // there is a connection to one of them. `clock` outlives this.
  Failover(size_t count, std::function<bool(size_t at)> connected,
           const Clock* clock)
      : count_(count), connected_(std::move(connected)), clock_(clock) {}

  size_t Current() const { return turn_ % count_; }
  // Notes how a call or a stream ended at one of them. If several failed there,
  // the first switches to the next coordinator.
  void Note(size_t at, const absl::Status& end) {
    if (absl::IsUnavailable(end)) {
      turn_.compare_exchange_strong(at, (at + 1) % count_);
    }
  }

  // Makes a call at one after the other, at each at most once, until one
  // answers; if options.retry is false, at one only. All within
  // options.timeout, of which each attempt gets what is left.
  absl::Status Call(
      const CallOptions& options,
      const std::function<absl::Status(size_t at, const CallOptions& once)>&
          attempt) {
    const absl::Time deadline = clock_->Now() + options.timeout;
    const size_t tries = options.retry ? count_ : 1;
    absl::Status result;
    for (size_t i = 0; i < tries; ++i) {
      CallOptions once = options;
      if (i > 0) {
        if (options.cancel != nullptr && !options.cancel->status().ok()) {
          return options.cancel->status();
        }
        once.timeout = deadline - clock_->Now();
        if (once.timeout <= absl::ZeroDuration()) break;
      }
      const size_t at = Current();
      absl::Status status = attempt(at, once);
      if (!absl::IsUnavailable(status)) return status;
      Note(at, status);
      // The error of one that answered by itself counts more than that of
      // those that did not answer. The next call begins with it.
      const bool said = connected_(at);
      if (said || result.ok()) result = std::move(status);
      if (!said) continue;
      turn_ = at;
      break;
    }
    return result;
  }

 private:
  const size_t count_;
  const std::function<bool(size_t)> connected_;
  const Clock* const clock_;
  std::atomic<size_t> turn_{0};
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_FAILOVER_H_
