#ifndef COXSWAIN_TESTS_BENCH_WORKER_SLEEPING_PIPELINE_H_
#define COXSWAIN_TESTS_BENCH_WORKER_SLEEPING_PIPELINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/pipeline/pipeline_executor.h"

namespace coxswain::bench {

// A pipeline whose stages sleep where others compute, so that ranks share no
// core: what is measured is the schedule and the way of the messages.
class SleepingPipeline {
 public:
  // `forward` and `backward` are what all stages of a rank sleep for a
  // micro-batch; `elements` are passed on, float64.
  static absl::StatusOr<std::unique_ptr<SleepingPipeline>> Create(
      Communicator* communicator, const std::string& schedule,
      int micro_batches, absl::Duration forward, absl::Duration backward,
      int64_t elements);

  // Runs a step.
  absl::Status Run() { return executor_->Run(); }

 private:
  class Stage;

  std::vector<std::unique_ptr<StageRunner>> stages_;
  std::unique_ptr<PipelineExecutor> executor_;
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_WORKER_SLEEPING_PIPELINE_H_
