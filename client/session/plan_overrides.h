#ifndef COXSWAIN_CLIENT_SESSION_PLAN_OVERRIDES_H_
#define COXSWAIN_CLIENT_SESSION_PLAN_OVERRIDES_H_

#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/session/job.h"

namespace coxswain {

// What whoever starts a program has of its schedule otherwise than the program
// itself: names are "accumulation", "hook", "compression_start" and those of
// the terms.
using PlanOverrides = std::map<std::string, std::string>;

// Reads NAME=VALUE words with spaces between them; those within parentheses
// belong to a hook's options. INVALID_ARGUMENT names the word that is wrong.
absl::StatusOr<PlanOverrides> ParsePlanOverrides(absl::string_view text);

// Puts them in the place of what the manifest says. INVALID_ARGUMENT names the
// word that is wrong.
absl::Status ApplyPlanOverrides(const PlanOverrides& overrides,
                                JobManifest* manifest);

// Names what of a plan the program has not asked for: what was overridden, and
// what differs from the manifest to which the overrides have been applied.
std::set<std::string> NotAskedFor(const PlanOverrides& overrides,
                                  const JobManifest& manifest,
                                  const JobPlan& plan);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_PLAN_OVERRIDES_H_
