#ifndef COXSWAIN_TESTS_BENCH_SCHEDULE_LIGHT_WORKERS_H_
#define COXSWAIN_TESTS_BENCH_SCHEDULE_LIGHT_WORKERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/rpc/coordinator_stub.h"

namespace coxswain::bench {

// The workers of a job with enforcement=strict that only speak with the
// coordinator, each over a connection and an Attach stream of its own, all in
// this process. One thread calls it.
class LightWorkers {
 public:
  // Joins and attaches all of them.
  static absl::StatusOr<std::unique_ptr<LightWorkers>> Join(
      const std::string& coordinator, const std::string& job, int count);
  // Leaves.
  ~LightWorkers();

  // Runs the next exchange of all workers. Returns the time from the first
  // ticket to the last decision, which is the grant as well where there are no
  // votes.
  absl::StatusOr<absl::Duration> Round();

 private:
  struct Worker {
    std::shared_ptr<CoordinatorStub> stub;
    v1::Fence fence;
    std::unique_ptr<AttachStream> stream;
  };

  LightWorkers() = default;
  absl::Status JoinAll(const std::string& coordinator, const std::string& job);
  absl::Status AttachAll();
  v1::AttachRequest TicketOfRound() const;
  void OnEvent(const v1::AttachEvent& event);
  // Waits until a counter has come to the number of workers.
  absl::Status Await(const int& counter);

  std::vector<Worker> workers_;
  v1::Plan plan_;
  int64_t round_ = 0;

  Mutex mutex_;
  CondVar changed_;
  int attached_ ABSL_GUARDED_BY(mutex_) = 0;
  int decided_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_SCHEDULE_LIGHT_WORKERS_H_
