// The part of Membership that refuses a round whose manifests differ.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/membership/job_rules.h"
#include "server/membership/manifest_check.h"
#include "server/membership/manifest_diff.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"
#include "server/membership/rank_assignment.h"

namespace coxswain::server {
namespace {

// Longer than it takes until the last worker of a launcher has come.
constexpr absl::Duration kRefusalMemory = absl::Seconds(30);

}  // namespace

absl::Status Membership::CheckRefusalLocked(const JoinRequest& request,
                                            Job* job) {
  if (!job->refusal.has_value()) return absl::OkStatus();
  const Refusal& refusal = *job->refusal;
  if (rooms_.clock->Now() >= refusal.until) {
    job->refusal.reset();
    return absl::OkStatus();
  }
  if (refusal.incarnations.count(request.incarnation) > 0 ||
      refusal.launchers.count(request.launcher_id) > 0) {
    return refusal.status;
  }
  return absl::OkStatus();
}

absl::Status Membership::CheckSameManifestLocked(const Manifest& manifest,
                                                 const Job& job) const {
  if (SameManifest(manifest, *job.run.manifest)) return absl::OkStatus();
  return ManifestMismatchError(
      absl::StrCat("job '", job.name, "' already runs with another manifest"),
      DiffManifests(*job.run.manifest, job.run.manifest_holder.ToString(),
                    manifest));
}

void Membership::RefuseRoundLocked(absl::string_view present, Job* job,
                                   Calls* calls) {
  const std::vector<std::string> differences =
      job->room.manifests().Differences(PresentIn(*job));
  Refusal refusal;
  const std::string what =
      absl::StrCat("the workers of job '", job->name,
                   "' differ, and all must be alike (", present, ")");
  refusal.status = ManifestMismatchError(what, differences);
  refusal.until = rooms_.clock->Now() + kRefusalMemory;
  for (const auto& [identity, waiter] : job->room.waiters()) {
    if (waiter.launcher_id != 0) refusal.launchers.insert(waiter.launcher_id);
    refusal.incarnations.insert(waiter.member.incarnation);
  }
  LogError("manifests_differ", {{"job", job->name},
                                {"reason", present},
                                {"differences", differences.size()}});
  for (const std::string& line : differences) {
    LogError("manifests_differ", {{"job", job->name}, {"difference", line}});
  }
  EndRoundLocked(refusal.status, job, calls);
  job->last_event = absl::StrCat(what, ": ", differences.front());
  if (differences.size() > 1) {
    absl::StrAppend(&job->last_event, ", and more");
  }
  job->refusal = std::move(refusal);
}

}  // namespace coxswain::server
