#ifndef COXSWAIN_CLIENT_COMM_MEASURED_LINKS_H_
#define COXSWAIN_CLIENT_COMM_MEASURED_LINKS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/mutex.h"

namespace coxswain {

// What this process knows of the links between the hosts of its job. It
// outlives generations: communicators of one measure, and those of the next are
// ordered by it. Thread-safe.
class MeasuredLinks {
 public:
  // By the ids of two hosts, the lower one first: picoseconds a byte.
  using Link = std::pair<uint64_t, uint64_t>;
  using Costs = std::map<Link, int64_t>;

  static Link LinkOf(uint64_t a, uint64_t b) {
    return {std::min(a, b), std::max(a, b)};
  }

  void Replace(Costs costs) {
    MutexLock lock(&mutex_);
    costs_ = std::move(costs);
  }
  Costs costs() const {
    MutexLock lock(&mutex_);
    return costs_;
  }

  // The newest ring that was chosen in this process, as rank 0 of a
  // communicator, and why, for display. Empty: there is none.
  void NoteRing(std::string ring) {
    MutexLock lock(&mutex_);
    ring_ = std::move(ring);
  }
  std::string ring() const {
    MutexLock lock(&mutex_);
    return ring_;
  }

 private:
  mutable Mutex mutex_;
  Costs costs_ ABSL_GUARDED_BY(mutex_);
  std::string ring_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_MEASURED_LINKS_H_
