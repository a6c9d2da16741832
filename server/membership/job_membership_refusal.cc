// The part of JobMembership that refuses a round whose manifests differ.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/membership/job_membership.h"
#include "server/membership/job_rules.h"
#include "server/membership/manifest_check.h"
#include "server/membership/manifest_diff.h"
#include "server/membership/membership_errors.h"
#include "server/membership/rank_assignment.h"

namespace coxswain::server {
namespace {

// Longer than it takes until the last worker of a launcher has come.
constexpr absl::Duration kRefusalMemory = absl::Seconds(30);

}  // namespace

absl::Status JobMembership::CheckRefusal(const JoinRequest& request,
                                         absl::Time now) {
  if (!job_.refusal.has_value()) return absl::OkStatus();
  const RoundRefusal& refusal = *job_.refusal;
  if (now >= refusal.until) {
    job_.refusal.reset();
    return absl::OkStatus();
  }
  if (refusal.incarnations.count(request.incarnation) > 0 ||
      refusal.launchers.count(request.launcher_id) > 0) {
    return refusal.status;
  }
  return absl::OkStatus();
}

absl::Status JobMembership::CheckSameManifest(const Manifest& manifest) const {
  if (SameManifest(manifest, *job_.run.manifest)) return absl::OkStatus();
  return ManifestMismatchError(
      absl::StrCat("job '", job_.name, "' already runs with another manifest"),
      DiffManifests(*job_.run.manifest, job_.run.manifest_holder.ToString(),
                    manifest));
}

void JobMembership::RefuseRound(absl::string_view present, absl::Time now,
                                JobEffects* effects) {
  const std::vector<std::string> differences =
      job_.waiting.manifests().Differences(PresentIn(job_));
  RoundRefusal refusal;
  const std::string what =
      absl::StrCat("the workers of job '", job_.name,
                   "' differ, and all must be alike (", present, ")");
  refusal.status = ManifestMismatchError(what, differences);
  refusal.until = now + kRefusalMemory;
  for (const auto& [identity, waiter] : job_.waiting.waiters()) {
    if (waiter.launcher_id != 0) refusal.launchers.insert(waiter.launcher_id);
    refusal.incarnations.insert(waiter.member.incarnation);
  }
  LogError("manifests_differ", {{"job", job_.name},
                                {"reason", present},
                                {"differences", differences.size()}});
  for (const std::string& line : differences) {
    LogError("manifests_differ", {{"job", job_.name}, {"difference", line}});
  }
  EndRound(refusal.status, now, effects);
  job_.last_event = absl::StrCat(what, ": ", differences.front());
  if (differences.size() > 1) {
    absl::StrAppend(&job_.last_event, ", and more");
  }
  job_.refusal = std::move(refusal);
}

}  // namespace coxswain::server
