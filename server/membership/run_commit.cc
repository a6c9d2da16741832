#include "server/membership/run_commit.h"

#include <utility>
#include <vector>

#include "server/membership/job_rules.h"
#include "server/membership/membership_records.h"

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

GenerationStart StartOf(const JobRecord& job, const RunRecord& run) {
  GenerationStart start;
  start.job = job.name;
  start.generation = run.generation;
  start.settings = *run.manifest;
  start.terms = run.manifest->terms;
  start.world_size = static_cast<int>(run.members.size());
  start.mesh = MeshOf(run);
  start.last = TrialOf(job);
  start.follows = job.run.generation != Generation(0);
  PutJob(KeptOf(job, run, true), &start.batch);
  if (job.run.generation != Generation(0)) {
    DeleteMembers(job.run.generation, &start.batch);
  }
  if (job.run.manifest != nullptr && job.run.manifest_at != run.manifest_at) {
    DeleteManifest(job.run.manifest_at, &start.batch);
  }
  return start;
}

}  // namespace

RunCommit CommitOf(const JobRecord& job, RunRecord run) {
  RunCommit commit;
  commit.job = job.name;
  commit.start = StartOf(job, run);
  commit.run = std::move(run);
  return commit;
}

std::deque<StateBatch> EncodeTables(const RunRecord& run) {
  std::deque<StateBatch> tables;
  for (StateBatch& batch :
       MemberBatches(run.generation, KeptMembers(run.members))) {
    tables.push_back(std::move(batch));
  }
  if (run.manifest_at != run.generation) return tables;
  for (StateBatch& batch : ManifestBatches(run.generation, *run.manifest)) {
    tables.push_back(std::move(batch));
  }
  return tables;
}

StateBatch DropTables(const RunRecord& run) {
  StateBatch batch;
  DeleteMembers(run.generation, &batch);
  if (run.manifest_at == run.generation) {
    DeleteManifest(run.generation, &batch);
  }
  return batch;
}

}  // namespace coxswain::server
