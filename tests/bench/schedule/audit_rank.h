#ifndef COXSWAIN_TESTS_BENCH_SCHEDULE_AUDIT_RANK_H_
#define COXSWAIN_TESTS_BENCH_SCHEDULE_AUDIT_RANK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/reduce/reducer.h"
#include "client/session/session.h"
#include "tests/bench/schedule/timed_gate.h"

namespace coxswain::bench {

// One rank of a small job that takes steps with its gradients announced to a
// coordinator, or not: it is a member of one job with each enforcement, so
// that the same process, on the same memory, does both in turns. All ranks make
// the same calls. One thread.
class AuditRank {
 public:
  struct Options {
    std::string coordinator;  // HOST:PORT
    int rank = 0;
    int size = 2;
    std::string backend = "auto";
  };

  // Of one step; medians over those that were taken.
  struct Steps {
    absl::Duration wall;
    absl::Duration in_gate;      // of this thread in Announce and Decide
    absl::Duration in_gate_cpu;  // its processor time there
    absl::Duration cpu;          // of all threads of the process; the mean
  };

  static absl::StatusOr<std::unique_ptr<AuditRank>> Join(
      const Options& options);

  // Leaves.
  ~AuditRank();

  // Takes steps, each of which computes for about as long, between the ticket
  // and the last gradient; or, with `elsewhere`, waits so long, as for a device
  // that computes.
  absl::StatusOr<Steps> Take(const std::string& enforcement, int count,
                             absl::Duration compute, bool elsewhere);

  // Returns what left this rank in one optimizer step of that many
  // micro-batches: with exchanges where the accumulator's `sync` is true, or in
  // each of them.
  absl::StatusOr<int64_t> WireBytes(int micro_batches, bool each);

 private:
  struct Job {
    std::unique_ptr<Session> session;
    std::shared_ptr<ProcessGroup> world;
    std::unique_ptr<Hook> hook;
    std::unique_ptr<TimedGate> gate;
    std::unique_ptr<Reducer> reducer;
    int64_t step = 0;
  };

  explicit AuditRank(const Options& options) : options_(options) {}
  absl::StatusOr<Job> JoinOne(const std::string& enforcement) const;
  // `compute` runs between the ticket and the gradients.
  absl::Status Step(const std::function<void()>& compute, Job& job);

  const Options options_;
  std::map<std::string, Job> jobs_;  // by enforcement
  double iterations_per_second_ = 0;
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_SCHEDULE_AUDIT_RANK_H_
