#ifndef COXSWAIN_SERVER_GENERATION_GENERATION_GUARD_H_
#define COXSWAIN_SERVER_GENERATION_GENERATION_GUARD_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "server/generation/fence.h"

namespace coxswain::server {

// Remembers which generations have ended, for a component with state for each:
// a request that passed the fence just before the end must not bring back, just
// after it, what the end has dropped.
//
// Generation numbers are unique across all jobs, so the last few are enough,
// whatever the number of jobs: a request is forgotten by its fence within
// milliseconds, in which no thousands of generations end. Thread-compatible:
// guarded by the component's lock.
class GenerationGuard {
 public:
  static constexpr size_t kRemembered = 4096;

  // UNAVAILABLE as the reason: the coordinator stops, and the generation
  // continues in its next term.
  void End(Generation generation,
           const absl::Status& reason = absl::OkStatus()) {
    if (absl::IsUnavailable(reason)) {
      shut_down_ = reason;
      return;
    }
    if (!ended_.insert(generation).second) return;
    order_.push_back(generation);
    if (order_.size() <= kRemembered) return;
    ended_.erase(order_.front());
    order_.pop_front();
  }

  // Fails with ABORTED if the fence's generation has ended, with UNAVAILABLE if
  // the coordinator stops.
  absl::Status Check(const Fence& fence) const {
    if (!shut_down_.ok()) return shut_down_;
    if (ended_.count(fence.generation) == 0) return absl::OkStatus();
    return EndedError(fence.job, fence.generation, "join again");
  }

  // Returns the status of waiters for an end with this reason.
  static absl::Status EndOf(absl::string_view job, Generation generation,
                            const absl::Status& reason) {
    if (absl::IsUnavailable(reason)) return reason;
    return EndedError(job, generation, reason.message());
  }
  static absl::Status EndedError(absl::string_view job, Generation generation,
                                 absl::string_view reason) {
    return absl::AbortedError(absl::StrCat("generation ", generation.value(),
                                           " of job \"", job,
                                           "\" has ended: ", reason));
  }

  size_t size() const { return order_.size(); }

 private:
  absl::Status shut_down_;
  std::set<Generation> ended_;
  std::deque<Generation> order_;  // in the order of their ends
};

// Runs what a component has put off until its lock was released.
inline void RunAll(const std::vector<std::function<void()>>& calls) {
  for (const auto& call : calls) call();
}

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GENERATION_GENERATION_GUARD_H_
