// The part of Membership that makes a generation durable before it begins.
//
// Its tables may have tens of megabytes. They are encoded without the lock and
// written one after the other, each once the one before is committed, so that
// the writes of other jobs come in between. The last commit is that of the plan
// and of the job's record: with it there is a new generation, and without it
// there are tables that the next start drops.

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "schedule/plan.h"
#include "server/membership/job_rules.h"
#include "server/membership/manifest_check.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"
#include "server/state/cluster_records.h"

namespace coxswain::server {

struct RunCommit {
  std::string job;
  RunRecord run;
  GenerationStart start;
  std::deque<StateBatch> tables;  // that are to be written yet
};

namespace {

// Calls that wait for one commit: each has a name or two, and a reason.
constexpr size_t kMaxDeferred = 1024;

std::vector<KeptMember> KeptMembers(const MemberTable& members) {
  std::vector<KeptMember> kept;
  kept.reserve(members.size());
  for (const MemberRecord& record : members) {
    kept.push_back({record.member, record.launcher_id});
  }
  return kept;
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

GenerationStart StartOf(const JobRecord& job, const RunRecord& run) {
  GenerationStart start;
  start.job = job.name;
  start.generation = run.generation;
  start.settings = *run.manifest;
  start.terms = run.manifest->terms;
  start.world_size = static_cast<int>(run.members.size());
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

void Membership::CommitRunLocked(Run run, Job* job, Calls* calls) {
  const auto commit = std::make_shared<RunCommit>();
  commit->job = job->name;
  commit->start = StartOf(*job, run);
  commit->run = std::move(run);
  job->commit = commit;
  // The plan of the generation follows from what the observers, the plan room
  // among them, have learned of the one before.
  CallInOrderLocked({[this, commit] {
                      const absl::Status bounds =
                          CheckManifestBounds(*commit->run.manifest);
                      if (!bounds.ok()) return NoteTableWritten(commit, bounds);
                      commit->tables = EncodeTables(commit->run);
                      WriteNextTable(commit);
                    }},
                    job, calls);
}

void Membership::WriteNextTable(const std::shared_ptr<RunCommit>& commit) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    if (shut_down_) return;
    StateBatch batch = std::move(commit->tables.front());
    commit->tables.pop_front();
    // Durable before the number is used. Jobs commit side by side: as it is
    // read and handed to the writer under one lock, the highest comes last.
    PutNextGeneration(next_generation_, &batch);
    WriteLocked(
        std::move(batch),
        [this, commit](const absl::Status& written) {
          NoteTableWritten(commit, written);
        },
        &calls);
  }
  RunAll(calls);
}

void Membership::NoteTableWritten(const std::shared_ptr<RunCommit>& commit,
                                  const absl::Status& written) {
  if (!written.ok()) return FinishCommit(commit, written);
  if (!commit->tables.empty()) return WriteNextTable(commit);
  // Waits for one small commit, and so do the calls that the writer would
  // answer next.
  FinishCommit(commit, rooms_.plans->BeginGeneration(std::move(commit->start)));
}

void Membership::FinishCommit(const std::shared_ptr<RunCommit>& commit,
                              absl::StatusOr<schedule::Plan> plan) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    // Its workers have been answered, and ask the next coordinator.
    if (shut_down_) return;
    Job* const job = &jobs_[commit->job];
    job->commit = nullptr;
    if (plan.ok()) {
      commit->run.plan = *std::move(plan);
      BeginRunLocked(std::move(commit->run), job, &calls);
    } else {
      DiscardLocked(DropTables(commit->run));
      GiveUpRoundLocked(NotWrittenError(plan.status()), job, &calls);
    }
    // One of them may lead to the next commit.
    while (job->commit == nullptr && !job->deferred.empty()) {
      const Change change = std::move(job->deferred.front());
      job->deferred.pop_front();
      change(&calls);
    }
  }
  RunAll(calls);
}

void Membership::ChangeLocked(Change change, Job* job, Calls* calls) {
  if (job->commit == nullptr) return change(calls);
  job->deferred.push_back(std::move(change));
}

absl::Status Membership::CheckTurnLocked(const Job& job) const {
  if (job.commit == nullptr || job.deferred.size() < kMaxDeferred) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(
      "a generation of job '", job.name, "' is being committed, and ",
      job.deferred.size(), " calls wait for that: ask again"));
}

}  // namespace coxswain::server
