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

namespace coxswain {

// Where a plan begins: the values of v1.Plan.at_step.
inline constexpr int64_t kWithNextGeneration = 0;
inline constexpr int64_t kAtNextStep = -1;

// What `coxswain plan set` is asked to change. Whatever can be known to be
// wrong without asking the coordinator or a worker is an error here.
struct PlanChange {
  std::optional<int> accumulation;
  std::optional<std::string> hook;  // canonical
  std::optional<int64_t> compression_start;
  std::map<std::string, std::string> terms;
  std::optional<int64_t> at_step;

  // Reads NAME=VALUE words. INVALID_ARGUMENT names the word that is wrong and
  // says what would be right.
  static absl::StatusOr<PlanChange> Parse(
      const std::vector<std::string>& words);

  // `plan` with the changes, complete but for at_step. INVALID_ARGUMENT: the
  // result does not go together.
  absl::StatusOr<v1::Plan> ApplyTo(v1::Plan plan) const;
};

// Reads what a job's plan shall begin with, whatever its program says:
// NAME=VALUE words, several in one text or not, as PlanChange::Parse knows
// them but for `at`. The same as one text for COXSWAIN_PLAN: sorted by name,
// with one space between two words, the hook canonical. Errors as
// PlanChange::Parse.
absl::StatusOr<std::string> ReadPlanOverrides(
    const std::vector<std::string>& texts);

// Whether the hooks of two plans differ, and one of them averages parameters,
// as local SGD does: not every program can begin or end that while it runs.
// False also for hooks that only the workers know.
bool ChangesAverager(const v1::Plan& from, const v1::Plan& to);

// OK if a step of `to` can follow one of `from` within a generation. Otherwise
// INVALID_ARGUMENT says what to do.
absl::Status CheckChangeWithinGeneration(const v1::Plan& from,
                                         const v1::Plan& to);

// The terms of a plan: those that it leaves out with their defaults.
std::map<std::string, std::string> AllTerms(const v1::Plan& plan);
// Those that are not the defaults, as "name=value", sorted by name.
std::vector<std::string> ChangedTerms(const v1::Plan& plan);

// What differs, as "accumulation 2 -> 8".
std::vector<std::string> Differences(const v1::Plan& from, const v1::Plan& to);

// For people: "the hook's own" or a number.
std::string CompressionStartText(const v1::Plan& plan);
// "the next generation", "the next step" or "step 200".
std::string BeginningText(int64_t at_step);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_PLAN_CHANGE_H_
