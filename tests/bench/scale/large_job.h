#ifndef COXSWAIN_TESTS_BENCH_SCALE_LARGE_JOB_H_
#define COXSWAIN_TESTS_BENCH_SCALE_LARGE_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/bench/scale/coordinator_process.h"
#include "tests/bench/scale/light_worker.h"
#include "tests/bench/scale/meeting.h"

namespace coxswain::bench {

// What all workers together did with the coordinator.
struct Phase {
  std::string name;
  int workers = 0;
  absl::Duration took;       // from the first call to the last answer
  absl::Duration median;     // to the answer in the middle
  absl::Duration cpu;        // of the coordinator
  int64_t bytes = 0;         // sent by the coordinator, HTTP/2's own too
  int64_t resident_kib = 0;  // of the coordinator, afterwards
};

// The workers of one job of one coordinator, all in this process, which take
// part in its life phase by phase: each begins when all have ended the one
// before. One thread calls it.
class LargeJob {
 public:
  struct Options {
    CoordinatorProcess coordinator;
    int workers = 0;
    int lose = 0;  // as many may be lost
  };

  explicit LargeJob(const Options& options);

  // Connects and joins each worker: the answer has its rank and all members.
  absl::StatusOr<Phase> Join();
  // Asks for the members, of which the answer to a large job's join has only
  // one.
  absl::StatusOr<Phase> AskForMembers();
  absl::StatusOr<Phase> Attach();
  // Declares, by each worker, the mesh of all nodes by the slots of a node.
  absl::StatusOr<Phase> FormGroups();
  // Does at least what `tcp` does to connect the workers of each node to each
  // other: each publishes its addresses, under tcp/GROUP/RANK, and reads those
  // of the others.
  absl::StatusOr<Phase> ExchangeAddresses();
  absl::StatusOr<Phase> Heartbeats(int each);
  absl::StatusOr<Phase> Barrier();
  // Reports workers' exits, as launchers do, until all others know that their
  // generation has ended.
  absl::StatusOr<Phase> Lose();
  // Joins them again, for the next generation.
  absl::StatusOr<Phase> FormAgain();

  int size() const { return static_cast<int>(workers_.size()); }

 private:
  // Runs a phase in which each of these workers makes a call.
  absl::StatusOr<Phase> Run(
      const std::string& name,
      const std::function<void(LightWorker*, const LightWorker::Done&)>& call);
  absl::StatusOr<Phase> Measure(const std::string& name,
                                const std::function<void(Meeting*)>& begin);
  int64_t BytesReceived() const;
  void AwaitGreetings(size_t from, size_t to) const;

  const Options options_;
  std::vector<std::unique_ptr<LightWorker>> workers_;
  std::vector<std::unique_ptr<LightWorker>> lost_;
  std::unique_ptr<Meeting> notified_;  // that the generation is over
  int slots_ = 0;                      // of a node, in the mesh
  int barriers_ = 0;
  int64_t beats_ = 0;
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_SCALE_LARGE_JOB_H_
