#ifndef COXSWAIN_TESTS_INTEGRATION_ELASTIC_TEAM_H_
#define COXSWAIN_TESTS_INTEGRATION_ELASTIC_TEAM_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/elastic/catch_up/catch_up_target.h"
#include "client/elastic/elastic_run.h"
#include "server/coordinator.h"
#include "tests/system/toy/elastic_toy_state.h"
#include "tests/system/toy/elastic_toy_training.h"

namespace coxswain {

constexpr absl::Duration kTimeout = absl::Seconds(30);

// One worker of an elastic job, in a thread of its own. What it may do is set
// before it starts, what it did is read after it has ended.
struct ElasticWorker {
  using Point = ToyTrainingOptions::Point;

  int slot = 0;
  ToyTrainingOptions training;
  // Its state, of which a test may make another kind.
  std::unique_ptr<ElasticToyState> state;
  std::atomic<bool> drain{false};
  absl::Duration reason_timeout = kTimeout;
  absl::Duration join_timeout = kTimeout;
  int max_fruitless = 16;
  ReplayMode replay = ReplayMode::kTwoRanks;
  CatchUpTarget* catch_up = nullptr;  // takes the members' state

  absl::Status status = absl::UnknownError("not run");
  ElasticRun::Ending ending = ElasticRun::Ending::kFinished;
  std::vector<RecoveryReport> reports;
  std::optional<HookState> hook_state;  // as its last generation left it
  std::thread thread;

  // Fails there, in a generation of that world size, which its peers see as a
  // loss.
  void DieAt(int world_size, int64_t step, Point point);
};

// A coordinator, and the workers of one job.
class ElasticTeam {
 public:
  // Compares parameters before each `checksum_every`-th step; 0: never.
  ElasticTeam(int most, int fewest, std::string hook = "allreduce",
              int64_t checksum_every = 0);
  ~ElasticTeam();

  ElasticWorker& Add(int slot, int64_t steps);
  void Start(ElasticWorker& worker);
  void StartAll();
  // Joins the threads that have been started.
  void Join();

  std::vector<std::unique_ptr<ElasticWorker>>& workers() { return workers_; }

 private:
  ElasticRun::Options OptionsOf(ElasticWorker& worker) const;
  void Run(ElasticWorker& worker) const;

  const int most_;
  const int fewest_;
  const std::string hook_;
  const int64_t checksum_every_;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::vector<std::unique_ptr<ElasticWorker>> workers_;
};

// A door that one thread opens for others.
class Door {
 public:
  void Open();
  // Fails with DEADLINE_EXCEEDED if the latch is not opened in time.
  absl::Status Pass();

 private:
  Mutex mutex_;
  CondVar opened_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_INTEGRATION_ELASTIC_TEAM_H_
