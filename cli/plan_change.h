#ifndef COXSWAIN_CLI_PLAN_CHANGE_H_
#define COXSWAIN_CLI_PLAN_CHANGE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/types.pb.h"
#include "schedule/plan.h"
#include "schedule/plan_words.h"

namespace coxswain {

// The changes that `coxswain plan set` requests. Errors here are those that
// need no call to the coordinator or a worker.
struct PlanChange {
  schedule::PlanWords words;  // the hook's spec is canonical
  // Where the plan begins, as schedule::Plan::at_step.
  std::optional<int64_t> at_step;

  // Returns what NAME=VALUE words ask for: those of schedule/plan_words.h and
  // `at`. A value may have spaces. Fails with INVALID_ARGUMENT, naming the word
  // that is wrong and what would be right.
  static absl::StatusOr<PlanChange> Parse(
      const std::vector<std::string>& words);

  // Returns `plan` with the changes, complete but for at_step. Fails with
  // INVALID_ARGUMENT if the result contradicts itself.
  absl::StatusOr<schedule::Plan> ApplyTo(schedule::Plan plan) const;
};

// Returns the settings that a job's plan begins with, in place of its
// program's, as one text for COXSWAIN_PLAN. Each of `texts` has NAME=VALUE
// words with spaces between, as in PlanChange::Parse but without `at`. Fails as
// PlanChange::Parse.
absl::StatusOr<std::string> ReadPlanOverrides(
    const std::vector<std::string>& texts);

// Returns whether the hooks of two plans differ, and one of them averages
// parameters, as local SGD does: not every program can begin or end that while
// it runs. Returns false for hooks that only the workers know.
bool ChangesAverager(const schedule::Plan& from, const schedule::Plan& to);

// Fails with INVALID_ARGUMENT, naming what to do, unless a step of `to` can
// follow one of `from` within a generation.
absl::Status CheckChangeWithinGeneration(const schedule::Plan& from,
                                         const schedule::Plan& to);

// Returns what differs, such as "accumulation 2 -> 8".
std::vector<std::string> Differences(const v1::Plan& from, const v1::Plan& to);

// Returns "the next generation", "the next step" or "step 200".
std::string BeginningText(int64_t at_step);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_PLAN_CHANGE_H_
