#ifndef COXSWAIN_CLIENT_SESSION_PLAN_OVERRIDES_H_
#define COXSWAIN_CLIENT_SESSION_PLAN_OVERRIDES_H_

#include <cstdint>
#include <map>
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
// word that is wrong. compression_start becomes a setting, so that workers
// whose launchers say different things learn it when they join.
absl::Status ApplyPlanOverrides(const PlanOverrides& overrides,
                                JobManifest* manifest);

// The step that compression starts at where the plan leaves that to the hook;
// -1 if the overrides, which are valid, do so too.
int64_t CompressionStartOf(const PlanOverrides& overrides);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_PLAN_OVERRIDES_H_
