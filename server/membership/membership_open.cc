// The part of Membership that takes up what earlier terms have left.

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/generation/job_name.h"
#include "server/membership/membership.h"
#include "server/state/cluster_records.h"
#include "server/state/quarantine.h"

namespace coxswain::server {
namespace {

// A commit that takes longer is waited for all the same, and logged.
constexpr absl::Duration kSlowCommit = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<Membership>> Membership::Open(
    const MembershipOptions& options, const Dependencies& deps,
    Generation used) {
  COXSWAIN_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<Membership> membership(new Membership(options, deps));
  COXSWAIN_RETURN_IF_ERROR(membership->BeginTerm(used));
  return membership;
}

Membership::~Membership() {
  {
    // No commit under way goes on with its next table.
    MutexLock lock(&mutex_);
    shut_down_ = true;
  }
  Mutex mutex;
  CondVar written;
  bool done = false;
  deps_.store->AfterWritten([&] {
    MutexLock lock(&mutex);
    done = true;
    written.NotifyAll();
  });
  MutexLock lock(&mutex);
  while (!written.WaitFor(&mutex, kSlowCommit, [&] { return done; })) {
    LogWarning("state_is_slow",
               {{"waited", absl::FormatDuration(kSlowCommit)}});
  }
}

absl::Status Membership::BeginTerm(Generation used) {
  StateStore& store = *deps_.store;
  COXSWAIN_ASSIGN_OR_RETURN(ClusterRecords cluster, ReadClusterRecords(store));
  const int64_t term = cluster.next_term;
  if (cluster.id.empty()) {
    cluster.id = absl::StrFormat("%016x%016x", deps_.random->Next(),
                                 deps_.random->Next());
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      LoadedJobs loaded, LoadJobs(store, Generation(cluster.next_generation)));
  COXSWAIN_ASSIGN_OR_RETURN(const auto stale, StaleTables(store, loaded.jobs));
  cluster.next_term = term + 1;
  cluster.next_generation = std::max(cluster.next_generation, used.value() + 1);
  cluster.next_plan_version = deps_.plans->next_version();
  StateBatch batch;
  PutClusterRecords(cluster, &batch);
  COXSWAIN_RETURN_IF_ERROR(store.Apply(batch));
  COXSWAIN_RETURN_IF_ERROR(QuarantineRecords(loaded.unreadable, &store));
  COXSWAIN_ASSIGN_OR_RETURN(const auto quarantined, ListQuarantined(store));
  deps_.plans->NoteQuarantined(quarantined);
  MutexLock lock(&mutex_);
  coordinator_.cluster_id = cluster.id;
  coordinator_.term = Term(term);
  next_generation_ = cluster.next_generation;
  last_tick_ = deps_.clock->Now();
  coordinator_.calendar = deps_.clock->WallTime() - last_tick_;
  RestoreLocked(std::move(loaded.jobs), quarantined);
  garbage_.insert(garbage_.end(), stale.begin(), stale.end());
  return absl::OkStatus();
}

void Membership::RestoreLocked(
    std::vector<LoadedJob> loaded,
    const std::vector<QuarantinedRecord>& quarantined) {
  const absl::Time now = deps_.clock->Now();
  for (LoadedJob& job : loaded) {
    const std::string name = job.job.name;
    const auto plans = deps_.plans->Get(name);
    std::optional<schedule::Plan> plan;
    if (plans.ok()) plan = plans->current;
    AddJobLocked(name, now)->machine.Restore(std::move(job), std::move(plan),
                                             now);
  }
  // Jobs of which only this is known: their own record is in quarantine.
  for (const std::string& name : JobsInQuarantine(quarantined)) {
    if (!ValidateJobName(name).ok() || jobs_.count(name) > 0) continue;
    // One more would drive out a job that is known.
    if (jobs_.size() >= static_cast<size_t>(options().max_jobs)) return;
    AddJobLocked(name, now)->machine.RestoreUnknown();
  }
}

absl::Status Membership::Resume() {
  std::set<std::string> known;
  {
    // A job whose record cannot be read is known, and may come back.
    COXSWAIN_ASSIGN_OR_RETURN(const auto before, ListQuarantined(*deps_.store));
    for (const QuarantinedRecord& record : before) known.insert(record.job);
  }
  std::vector<GenerationResumed> resumed;
  {
    MutexLock lock(&mutex_);
    last_tick_ = deps_.clock->Now();
    for (auto& [name, job] : jobs_) {
      known.insert(name);
      auto one = job.machine.Resume(last_tick_);
      if (one.has_value()) resumed.push_back(*std::move(one));
    }
  }
  // Not under the lock: it writes.
  deps_.plans->KeepOnly(known);
  for (GenerationObserver* observer : observers_) {
    COXSWAIN_RETURN_IF_ERROR(observer->OnResume(resumed));
  }
  // With what the observers could not read.
  COXSWAIN_ASSIGN_OR_RETURN(const auto quarantined,
                            ListQuarantined(*deps_.store));
  Calls calls;
  {
    MutexLock lock(&mutex_);
    const absl::Time now = deps_.clock->Now();
    for (auto& entry : jobs_) {
      JobEffects effects;
      entry.second.machine.FinishResume(quarantined, now, &effects);
      CarryOutLocked(std::move(effects), &entry.second, &calls);
    }
    while (!garbage_.empty()) DropGarbageLocked(&calls);
  }
  RunAll(calls);
  return absl::OkStatus();
}

}  // namespace coxswain::server
