#ifndef COXSWAIN_CLIENT_SESSION_WAIT_WATCH_H_
#define COXSWAIN_CLIENT_SESSION_WAIT_WATCH_H_

#include <cstdint>
#include <tuple>

#include "absl/time/time.h"

namespace coxswain {

// What changes while a worker gets on.
struct WorkDone {
  int64_t collectives = 0;  // begun
  int64_t wire_bytes = 0;
  int64_t rounds = 0;
  int64_t micro_batches = 0;
  int64_t step = 0;
  int64_t waits = 0;  // that have ended

  bool operator==(const WorkDone& other) const { return Tie() == other.Tie(); }

 private:
  std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t> Tie() const {
    return {collectives, wire_bytes, rounds, micro_batches, step, waits};
  }
};

// Finds out from looks at a worker how long it has waited for others without
// anything moving. A part of Session; one thread only.
class WaitWatch {
 public:
  // `waits`: it does now. Returns the time since the first of the looks in a
  // row that found it waiting with this much done; 0 at that one, and where it
  // does not wait.
  absl::Duration Look(absl::Time now, bool waits, const WorkDone& done) {
    if (!waits || !waits_ || !(done == done_)) since_ = now;
    waits_ = waits;
    done_ = done;
    return now - since_;
  }

 private:
  bool waits_ = false;
  WorkDone done_;
  absl::Time since_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_WAIT_WATCH_H_
