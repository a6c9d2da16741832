#include "client/session/job.h"

#include "base/status_macros.h"

namespace coxswain {

absl::StatusOr<PlanOverrides> ParsePlanOverrides(absl::string_view text) {
  COXSWAIN_ASSIGN_OR_RETURN(
      PlanOverrides overrides,
      schedule::ParsePlanWords(schedule::SplitPlanText(text)));
  JobManifest scratch;
  COXSWAIN_RETURN_IF_ERROR(schedule::ApplyPlanWords(overrides, &scratch));
  return overrides;
}

std::set<std::string> NotAskedFor(const PlanOverrides& overrides,
                                  const JobManifest& manifest,
                                  const schedule::Plan& plan) {
  std::set<std::string> names;
  for (const auto& [name, value] : overrides) names.insert(name);
  const schedule::PlanWords asked = schedule::PlanWordsOf(manifest);
  for (const auto& [name, value] : schedule::PlanWordsOf(plan)) {
    if (asked.at(name) != value) names.insert(name);
  }
  return names;
}

}  // namespace coxswain
