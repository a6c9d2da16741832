// The part of Membership that makes a generation durable before it begins.

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/membership/job_rules.h"
#include "server/membership/membership.h"

namespace coxswain::server {
namespace {

std::vector<KeptMember> KeptMembers(const MemberTable& members) {
  std::vector<KeptMember> kept;
  kept.reserve(members.size());
  for (const MemberRecord& record : members) {
    kept.push_back({record.member, record.launcher_id});
  }
  return kept;
}

}  // namespace

absl::Status Membership::WriteTablesLocked(const Run& run) {
  for (const StateBatch& batch :
       MemberBatches(run.generation, KeptMembers(run.members))) {
    COXSWAIN_RETURN_IF_ERROR(rooms_.store->Apply(batch));
  }
  if (run.manifest_at != run.generation) return absl::OkStatus();
  for (const StateBatch& batch :
       ManifestBatches(run.generation, *run.manifest)) {
    COXSWAIN_RETURN_IF_ERROR(rooms_.store->Apply(batch));
  }
  return absl::OkStatus();
}

absl::Status Membership::CommitRunLocked(const Job& job, Run* run) {
  absl::Status status = WriteTablesLocked(*run);
  GenerationStart start;
  start.job = job.name;
  start.generation = run->generation;
  start.hook = run->manifest->hook;
  start.accumulation_steps = run->manifest->accumulation_steps;
  start.compression_start_step = run->manifest->compression_start_step;
  start.terms = run->manifest->terms;
  start.world_size = static_cast<int>(run->members.size());
  start.last = TrialOf(job);
  start.batch.Put(kClusterTable, kNextGenerationKey,
                  absl::StrCat(next_generation_));
  PutJob(KeptOf(job, *run, true), &start.batch);
  if (job.run.generation != Generation(0)) {
    DeleteMembers(job.run.generation, &start.batch);
  }
  if (job.run.manifest != nullptr && job.run.manifest_at != run->manifest_at) {
    DeleteManifest(job.run.manifest_at, &start.batch);
  }
  if (status.ok()) {
    auto plan = rooms_.plans->BeginGeneration(std::move(start));
    status = plan.status();
    if (plan.ok()) run->plan = *std::move(plan);
  }
  if (!status.ok()) {
    StateBatch written;
    DeleteMembers(run->generation, &written);
    if (run->manifest_at == run->generation) {
      DeleteManifest(run->generation, &written);
    }
    DiscardLocked(written);
  }
  return status;
}

}  // namespace coxswain::server
