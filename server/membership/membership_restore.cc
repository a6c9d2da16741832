// The part of Membership that keeps its jobs in the state store, and takes them
// up again after a restart.

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/generation/job_name.h"
#include "server/membership/job_rules.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"
#include "server/state/cluster_records.h"
#include "server/state/quarantine.h"

namespace coxswain::server {
namespace {

// What could not be written is tried again after this time.
constexpr absl::Duration kSaveInterval = absl::Seconds(1);
// A commit that takes longer is waited for all the same, and said so.
constexpr absl::Duration kSlowCommit = absl::Seconds(10);

// Tables that are dropped at once, and that are remembered for it.
constexpr size_t kGarbageInBatch = 100;
constexpr size_t kMaxGarbage = 4096;
static_assert(kGarbageInBatch <= StateStore::kMaxWrites);

// Whether a record of this generation is in the table.
bool IsOfGeneration(absl::string_view table, Generation generation) {
  return absl::EndsWith(table, absl::StrCat("/", generation.value()));
}

MemberState StateOf(const Departure& departure) {
  return departure.left ? MemberState::kLeft : MemberState::kLost;
}

std::vector<MemberRecord> RecordsOf(const LoadedJob& loaded, absl::Time now) {
  std::vector<MemberRecord> records;
  for (const KeptMember& kept : loaded.members) {
    MemberRecord& record = records.emplace_back();
    record.member = kept.member;
    record.launcher_id = kept.launcher_id;
    record.liveness.state = MemberState::kDetached;
    record.liveness.last_sign = now;
    record.liveness.detached_at = now;
  }
  for (const auto& [rank, departure] : loaded.departures) {
    MemberRecord& record = records[rank];
    record.liveness.state = StateOf(departure);
    record.rejoins = departure.rejoins;
    record.departure = departure.reason;
    record.progress.error_norm = departure.error_norm;
    record.progress.error_step = departure.error_step;
  }
  return records;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Membership>> Membership::Open(
    const MembershipOptions& options, const Rooms& rooms, Generation used) {
  COXSWAIN_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<Membership> membership(new Membership(options, rooms));
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
  rooms_.store->AfterWritten([&] {
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
  StateStore& store = *rooms_.store;
  COXSWAIN_ASSIGN_OR_RETURN(ClusterRecords cluster, ReadClusterRecords(store));
  const int64_t term = cluster.next_term;
  if (cluster.id.empty()) {
    cluster.id = absl::StrFormat("%016x%016x", rooms_.random->Next(),
                                 rooms_.random->Next());
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      LoadedJobs loaded, LoadJobs(store, Generation(cluster.next_generation)));
  COXSWAIN_ASSIGN_OR_RETURN(const auto stale, StaleTables(store, loaded.jobs));
  cluster.next_term = term + 1;
  cluster.next_generation = std::max(cluster.next_generation, used.value() + 1);
  cluster.next_plan_version = rooms_.plans->next_version();
  StateBatch batch;
  PutClusterRecords(cluster, &batch);
  COXSWAIN_RETURN_IF_ERROR(store.Apply(batch));
  COXSWAIN_RETURN_IF_ERROR(QuarantineRecords(loaded.unreadable, &store));
  COXSWAIN_ASSIGN_OR_RETURN(const auto quarantined, ListQuarantined(store));
  rooms_.plans->NoteQuarantined(quarantined);
  MutexLock lock(&mutex_);
  cluster_id_ = cluster.id;
  term_ = Term(term);
  next_generation_ = cluster.next_generation;
  last_tick_ = rooms_.clock->Now();
  for (LoadedJob& job : loaded.jobs) RestoreLocked(std::move(job));
  RestoreUnknownLocked(quarantined);
  garbage_.insert(garbage_.end(), stale.begin(), stale.end());
  return absl::OkStatus();
}

void Membership::RestoreUnknownLocked(
    const std::vector<QuarantinedRecord>& quarantined) {
  for (const std::string& name : JobsInQuarantine(quarantined)) {
    if (!ValidateJobName(name).ok() || jobs_.count(name) > 0) continue;
    // One more would drive out a job that is known.
    if (jobs_.size() >= static_cast<size_t>(options_.max_jobs)) return;
    Job& job = jobs_[name];
    job.name = name;
    job.state = JobState::kEnded;
    job.ended_at = rooms_.clock->Now();
    job.last_event =
        "the stored record of the job could not be read and is in quarantine; "
        "its last generation has ended";
  }
}

void Membership::RestoreLocked(LoadedJob loaded) {
  const absl::Time now = rooms_.clock->Now();
  Job& job = jobs_[loaded.job.name];
  job.name = loaded.job.name;
  job.state = loaded.job.running ? JobState::kRunning : JobState::kEnded;
  job.last_event = loaded.job.last_event;
  job.ended_at = now;
  job.attempt = loaded.job.attempt;
  job.starts_anew = loaded.job.starts_anew;
  Run& run = job.run;
  run.generation = loaded.job.generation;
  run.members = MemberTable(RecordsOf(loaded, now));
  run.reason = loaded.job.reason;
  run.previous = loaded.job.previous.generation;
  run.previous_world_size = loaded.job.previous.world_size;
  run.lost_count = loaded.job.previous.lost_count;
  run.lost = std::make_shared<const std::vector<LostMember>>(
      std::move(loaded.job.previous.lost));
  run.began = now;
  run.resumed = true;
  run.finished = run.ended_well = loaded.job.finished;
  run.places = std::move(loaded.job.places);
  run.regroups = loaded.job.regroups;
  job.world_size = job.min_world_size = loaded.job.world_size;
  const auto plans = rooms_.plans->Get(job.name);
  if (plans.ok()) run.plan = plans->current;
  if (run.finished) return;
  run.manifest_at = loaded.job.manifest;
  if (loaded.job.unreadable || !loaded.damage.ok()) {
    job.state = JobState::kEnded;
    job.starts_anew = true;
    if (loaded.damage.ok()) return;
    // Written by Resume(), with what else has ended.
    job.last_event = absl::StrCat(loaded.damage.message(),
                                  " and is in quarantine; the generation has "
                                  "ended");
    job.unsaved = true;
    LogError("generation_lost", {{"job", job.name},
                                 {"generation", run.generation.value()},
                                 {"reason", job.last_event}});
    return;
  }
  run.manifest_holder = loaded.job.manifest_holder;
  job.world_size = loaded.manifest.world_size;
  job.min_world_size = loaded.manifest.MinWorldSize();
  run.manifest = std::make_shared<const Manifest>(std::move(loaded.manifest));
  if (job.state != JobState::kRunning && !job.starts_anew) {
    ExpectSurvivorsLocked(&job);
  }
}

std::vector<GenerationResumed> Membership::FindResumedLocked() {
  std::vector<GenerationResumed> resumed;
  for (auto& [name, job] : jobs_) {
    if (job.state != JobState::kRunning || job.run.members.live() == 0) {
      continue;
    }
    // Without a plan it is ended by EndDamagedLocked.
    if (job.run.plan.version == 0) continue;
    GenerationResumed& one = resumed.emplace_back();
    one.begin.job = name;
    one.begin.generation = job.run.generation;
    one.begin.world_size = static_cast<int>(job.run.members.size());
    one.begin.plan = job.run.plan;
    for (MemberRecord& record : job.run.members) {
      record.liveness = WithPatience(rooms_.clock->Now(), record.liveness);
      if (!IsLive(record.liveness.state))
        one.left.push_back(record.member.rank);
      if (record.rejoins) job.run.making_way = rooms_.clock->Now();
    }
    LogInfo("generation_resumed",
            {{"job", name},
             {"generation", job.run.generation.value()},
             {"members", job.run.members.live()},
             {"grace", absl::FormatDuration(options_.reattach_grace)}});
  }
  return resumed;
}

void Membership::EndDamagedLocked(
    const std::vector<QuarantinedRecord>& quarantined, Calls* calls) {
  for (auto& [name, job] : jobs_) {
    if (job.state != JobState::kRunning) continue;
    std::string why;
    if (job.run.plan.version == 0) why = "its stored plan could not be read";
    for (const QuarantinedRecord& record : quarantined) {
      if (!IsOfGeneration(record.table, job.run.generation)) continue;
      why = absl::StrCat("a record of table '", record.table,
                         "' could not be read and is in quarantine (",
                         record.reason, ")");
    }
    if (why.empty()) continue;
    LogError("generation_lost", {{"job", name},
                                 {"generation", job.run.generation.value()},
                                 {"reason", why}});
    EndGenerationLocked(
        GenerationEndedError(
            absl::StrCat("generation ", job.run.generation.value(), " of job '",
                         name,
                         "' cannot go on after a restart of the "
                         "coordinator: ",
                         why),
            std::nullopt),
        nullptr, &job, calls);
  }
}

absl::Status Membership::Resume() {
  std::set<std::string> known;
  {
    // A job whose record cannot be read is known, and may come back.
    COXSWAIN_ASSIGN_OR_RETURN(const auto before,
                              ListQuarantined(*rooms_.store));
    for (const QuarantinedRecord& record : before) known.insert(record.job);
  }
  std::vector<GenerationResumed> resumed;
  {
    MutexLock lock(&mutex_);
    for (const auto& entry : jobs_) known.insert(entry.first);
    resumed = FindResumedLocked();
    last_tick_ = rooms_.clock->Now();
  }
  // Not under the lock: it writes.
  rooms_.plans->KeepOnly(known);
  for (GenerationObserver* observer : observers_) {
    COXSWAIN_RETURN_IF_ERROR(observer->OnResume(resumed));
  }
  // With what the observers could not read.
  COXSWAIN_ASSIGN_OR_RETURN(const auto quarantined,
                            ListQuarantined(*rooms_.store));
  Calls calls;
  {
    MutexLock lock(&mutex_);
    for (auto& entry : jobs_) {
      Job& job = entry.second;
      // The last one had left when the coordinator stopped.
      if (job.state == JobState::kRunning && job.run.members.live() == 0) {
        EndWellLocked(&job, &calls);
      }
      // Its members or its manifest could not be read.
      if (std::exchange(job.unsaved, false)) {
        SaveLocked(StateBatch(), &job, &calls);
      }
    }
    EndDamagedLocked(quarantined, &calls);
    while (!garbage_.empty()) DropGarbageLocked(&calls);
  }
  RunAll(calls);
  return absl::OkStatus();
}

void Membership::WriteLocked(StateBatch batch, StateWriter::Done done,
                             Calls* calls) {
  // A writer may call back before Write() returns, while the lock is held.
  struct Landing {
    Mutex mutex;
    bool writing = true;
    std::optional<absl::Status> status;
  };
  const auto landing = std::make_shared<Landing>();
  rooms_.store->Write(std::move(batch),
                      [landing, done](const absl::Status& status) {
                        {
                          MutexLock lock(&landing->mutex);
                          if (landing->writing) {
                            landing->status = status;
                            return;
                          }
                        }
                        done(status);
                      });
  MutexLock lock(&landing->mutex);
  landing->writing = false;
  if (!landing->status.has_value()) return;
  calls->push_back(
      [done = std::move(done), status = *landing->status] { done(status); });
}

void Membership::SaveLocked(StateBatch batch, Job* job, Calls* calls) {
  // One that has had no generation is not worth it.
  if (job->run.generation == Generation(0)) return;
  PutJob(KeptOf(*job, job->run, job->state == JobState::kRunning), &batch);
  WriteLocked(
      std::move(batch),
      [this, name = job->name](const absl::Status& status) {
        if (!status.ok()) NoteUnsaved(name, status);
      },
      calls);
}

void Membership::NoteUnsaved(const std::string& job,
                             const absl::Status& status) {
  LogError("job_not_saved", {{"job", job}, {"error", status.message()}});
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  found->second.unsaved = true;
  found->second.save_again = rooms_.clock->Now() + kSaveInterval;
}

void Membership::DiscardLocked(const StateBatch& tables) {
  for (const StateBatch::Write& write : tables.writes()) {
    if (garbage_.size() == kMaxGarbage) return;
    garbage_.push_back(write.table);
  }
}

void Membership::DropGarbageLocked(Calls* calls) {
  if (garbage_.empty()) return;
  StateBatch piece;
  while (!garbage_.empty() && piece.writes().size() < kGarbageInBatch) {
    piece.DeleteTable(garbage_.front());
    garbage_.pop_front();
  }
  WriteLocked(
      piece,
      [this, piece](const absl::Status& status) {
        if (status.ok()) return;
        LogWarning("tables_not_dropped", {{"error", status.message()}});
        MutexLock lock(&mutex_);
        DiscardLocked(piece);
        drop_garbage_at_ = rooms_.clock->Now() + kSaveInterval;
      },
      calls);
}

void Membership::SaveAgainLocked(Job* job, Calls* calls) {
  job->unsaved = false;
  StateBatch batch;
  if (job->run.finished) {
    DeleteMembers(job->run.generation, &batch);
    DeleteManifest(job->run.manifest_at, &batch);
  } else {
    for (const MemberRecord& record : job->run.members) {
      if (IsLive(record.liveness.state)) continue;
      PutDeparture(job->run.generation, record.member.rank, DepartureOf(record),
                   &batch);
      if (batch.writes().size() < StateStore::kMaxWrites / 2) continue;
      SaveLocked(std::exchange(batch, StateBatch()), job, calls);
    }
  }
  SaveLocked(std::move(batch), job, calls);
}

}  // namespace coxswain::server
