#ifndef COXSWAIN_TESTS_CONFORMANCE_AVERAGER_TEAM_H_
#define COXSWAIN_TESTS_CONFORMANCE_AVERAGER_TEAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/comm/communicator.h"
#include "client/reduce/averager.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {

// The values of all parameters, by registration index.
using Values = Gradients;

// Returns what `value` becomes where a parameter of this type holds it.
double RoundTo(DType dtype, double value);

// Returns what rank `rank` adds to its parameters in step `step`: random and
// its own, except before `start_step`, when all ranks add the same.
Values LocalUpdate(const std::vector<ParameterSpec>& parameters, int rank,
                   int64_t step, int64_t start_step);

// Adds the update to the values, rounded to the parameters' types.
void ApplyUpdate(const std::vector<ParameterSpec>& parameters,
                 const Values& update, Values& values);

// The ranks of one job in this process, each with its own instance of an
// averager, its parameters, and a thread while it runs. A failure fails the
// test.
class AveragerTeam {
 public:
  using Group = std::vector<std::unique_ptr<Communicator>>;

  // Configures the averagers. All ranks begin with the same parameters.
  AveragerTeam(const std::string& spec, std::vector<ParameterSpec> parameters,
               Group group, const Values& initial);

  int size() const { return static_cast<int>(group_.size()); }
  Averager& averager(int rank) { return *ranks_[Index(rank)].averager; }
  Communicator& communicator(int rank) { return *group_[Index(rank)]; }

  // Steps [step(), to): each rank updates its parameters and calls the
  // averager. Returns each rank's values after each step, [step][rank]. Checks
  // the results of averages_next() and diverged().
  std::vector<std::vector<Values>> RunTo(int64_t to, int64_t start_step);
  // Calls AverageNow on all ranks; returns their values.
  std::vector<Values> AverageNow();

  // Returns all shards, through their bytes, merged.
  HookState Save();
  absl::Status Load(const HookState& state);

 private:
  struct Rank {
    std::unique_ptr<Averager> averager;
    std::vector<std::string> memory;  // of the parameters
    std::vector<Span> values;
  };
  static size_t Index(int rank) { return static_cast<size_t>(rank); }

  // Calls `function` with each rank, on a thread each.
  void OnAll(const std::function<void(int rank)>& function);
  Values Get(int rank) const;
  void Set(int rank, const Values& values);
  void Step(int rank, int64_t start_step);

  const std::vector<ParameterSpec> parameters_;
  Group group_;
  std::vector<Rank> ranks_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_AVERAGER_TEAM_H_
