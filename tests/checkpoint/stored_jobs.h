#ifndef COXSWAIN_TESTS_CHECKPOINT_STORED_JOBS_H_
#define COXSWAIN_TESTS_CHECKPOINT_STORED_JOBS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/checkpoint/training_state.h"
#include "client/session/session.h"
#include "server/coordinator.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {

// A coordinator in this process that keeps checkpoints in files, and jobs that
// save theirs with it, over loopback. A failure fails the test.
class StoredJobs {
 public:
  // Keeps them in `folder`.
  explicit StoredJobs(const std::string& folder);

  // Begins a job, which has no checkpoints yet. One member saves the shards of
  // all ranks: the ranks of a HookWorld are no processes.
  void Begin();

  // Called with each rank, on a thread each: saves its part.
  using Save = std::function<absl::Status(CheckpointClient&, int rank)>;

  // Saves with this many ranks, ends the job's generation, and loads in the
  // next one.
  TrainingState SaveAndLoad(int size, const Save& save);
  // Returns the state of the ranks of `world` after `step`.
  TrainingState SaveAndLoad(HookWorld& world, int64_t step);

 private:
  void Join();
  void Leave();

  std::unique_ptr<server::Coordinator> coordinator_;
  std::unique_ptr<Session> session_;
  int jobs_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CHECKPOINT_STORED_JOBS_H_
