#ifndef COXSWAIN_TESTS_SYSTEM_RANDOM_KILLS_H_
#define COXSWAIN_TESTS_SYSTEM_RANDOM_KILLS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/random.h"
#include "tests/system/growth.h"
#include "tests/system/latencies.h"
#include "tests/system/test_cluster.h"

namespace coxswain {

// A job of four workers, and four spares, of which some are killed repeatedly:
// at random moments, one or several at once, and sometimes the coordinator. At
// least one that has the training's state stays alive each time, since the
// state would be lost with the last.
//
// Checks that training goes on after each kill, and at the end that all workers
// that trained to the end have every sum right and the same bits, and that no
// process is left. Measures how soon the others notice, and train again.
//
// Which worker is killed when is a function of the seed, as far as a machine
// repeats itself.
//
// With `churn` it does not wait for training to go on after each kill:
// something happens all the time, each 50 to 200 ms. A worker is killed, the
// launcher of the spares is drained, with whatever its workers do, or a new one
// joins; now and then the coordinator is killed. Every few seconds it is calm
// until training goes on, and what the coordinator, the launcher and one worker
// that is never killed hold is looked at: it must not grow.
class RandomKills {
 public:
  struct Options {
    int kills = 0;
    absl::Duration at_most;  // begins no kill after it
    uint64_t seed = 0;
    std::string backend;
    std::string program;  // of the workers; empty: the elastic toy
    bool churn = false;
    absl::Duration coordinator_every;  // of churn: how often it is killed
  };

  explicit RandomKills(const Options& options)
      : options_(options), random_(options.seed, /*stream=*/1) {}

  // Runs the test. Its failures are those of the calling test.
  void Run();

 private:
  // Of a kill among workers that were all in the same generation.
  struct Struck {
    absl::Time at;
    int64_t generation = 0;
    std::vector<WorkerLife*> survivors;
  };

  uint64_t Pick(uint64_t below) { return random_.Bits(draws_++) % below; }
  bool Chance(int percent) {
    return Pick(100) < static_cast<uint64_t>(percent);
  }

  void StartAll();
  void Idle();
  void Round();
  // A while of churn, and the calm after it.
  void Churn();
  void Act();
  void LeaveOrJoin();
  void KillCoordinator();
  void LookAtGrowth();
  void StartSpares();
  std::vector<std::string> RunOptions() const;
  // Returns processes that may die, so that one which has the state is left.
  std::vector<pid_t> Victims(size_t count);
  // Takes the one that churn never kills off a list.
  void Spare(const std::vector<WorkerLife*>& training,
             std::vector<pid_t>* pids);
  bool AwaitProgress();
  void Measure(const Struck& struck);
  void Report() const;

  const Options options_;
  const CounterRandom random_;
  uint64_t draws_ = 0;
  TestCluster cluster_;
  TestCluster::Launcher workers_ = 0;
  TestCluster::Launcher spares_ = 0;
  int kills_ = 0;
  int coordinator_kills_ = 0;
  int joins_ = 0;
  int leaves_ = 0;
  bool spares_leave_ = false;
  absl::Time next_coordinator_kill_;
  // The process that churn never kills, and how often it was another one.
  pid_t spared_ = 0;
  int spared_changes_ = 0;
  Growth coordinator_growth_;
  Growth launcher_growth_;
  Growth worker_growth_;
  Latencies to_error_;
  Latencies to_training_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_RANDOM_KILLS_H_
