#ifndef COXSWAIN_TESTS_INTEGRATION_KILLED_RANKS_H_
#define COXSWAIN_TESTS_INTEGRATION_KILLED_RANKS_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/random.h"
#include "tests/support/process.h"

namespace coxswain {

// Returns the running processes that this test has started, and their
// descendants, found by a variable of their environment.
std::vector<std::filesystem::path> OwnProcesses();

// A group of processes (killed_rank.cc) that exchange over one back end, some
// of which are killed at random moments. Which, and when, is a function of the
// seed, as far as a machine repeats itself.
class KilledRanks {
 public:
  static constexpr int kRanks = 4;

  KilledRanks(std::string backend, std::string stage, uint64_t seed,
              int ranks = kRanks);
  ~KilledRanks();

  // Starts all ranks; the first `victims` of a random order are killed.
  void Start(int victims);
  // Starts them with this timeout of their own; none is killed.
  void StartAll(absl::Duration timeout) { StartEach(timeout, {}); }
  void AwaitAllThere();
  // Asks those that are not to be killed to end.
  void Terminate();
  // Waits for the victims; returns how many were killed.
  int AwaitVictims();
  // Expects that the others end soon, with an error that names a rank.
  void CheckSurvivors();

  // Stops one of two ranks that are not to be killed as it is, for good;
  // expects that the other ends by its timeout, with an error that names it.
  void StallOne(int rank);

  // The folder that the ranks use as their store.
  const std::string& folder() const { return folder_; }

 private:
  double Uniform() { return random_.Uniform(drawn_++); }
  int64_t TimeToDie();
  // `die_after` is by rank, in microseconds.
  void StartEach(absl::Duration timeout, std::map<int, int64_t> die_after);

  const std::string backend_;
  const std::string stage_;
  const CounterRandom random_;
  const int ranks_;
  uint64_t drawn_ = 0;
  std::string folder_;
  std::vector<std::unique_ptr<Process>> survivors_;
  std::vector<std::unique_ptr<Process>> victims_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_INTEGRATION_KILLED_RANKS_H_
