// The part of JobMembership that is kept in the state store, and taken up again
// after a restart.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/membership/job_membership.h"
#include "server/membership/job_rules.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {
namespace {

// What could not be written is tried again after this time.
constexpr absl::Duration kSaveInterval = absl::Seconds(1);

// Returns whether a record of this generation is in the table.
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
    record.restored = true;
  }
  for (const auto& [rank, departure] : loaded.departures) {
    MemberRecord& record = records[rank];
    record.liveness.state = StateOf(departure);
    record.rejoins = departure.rejoins;
    record.departure = departure.reason;
    record.progress.error_norm = departure.error_norm;
    record.progress.error_step = departure.error_step;
    record.progress.step = departure.step;
  }
  return records;
}

}  // namespace

void JobMembership::RestoreUnknown() {
  job_.last_event =
      "the stored record of the job could not be read and is in quarantine; "
      "its last generation has ended";
}

void JobMembership::Restore(LoadedJob loaded,
                            std::optional<schedule::Plan> plan,
                            absl::Time now) {
  job_.state = loaded.job.running ? JobState::kRunning : JobState::kEnded;
  job_.last_event = loaded.job.last_event;
  job_.last_event_date = loaded.job.last_event_date;
  // The calendar of the machine that wrote it may have been ahead.
  job_.last_event_at =
      std::min(job_.last_event_date - coordinator_->calendar, now);
  job_.ended_at = now;
  job_.attempt = loaded.job.attempt;
  job_.starts_anew = loaded.job.starts_anew;
  RunRecord& run = job_.run;
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
  run.last_step = loaded.job.step;
  run.regroups = loaded.job.regroups;
  job_.world_size = job_.min_world_size = loaded.job.world_size;
  if (plan.has_value()) run.plan = *std::move(plan);
  if (run.finished) return;
  run.manifest_at = loaded.job.manifest;
  if (loaded.job.unreadable || !loaded.damage.ok()) {
    job_.state = JobState::kEnded;
    job_.starts_anew = true;
    if (loaded.damage.ok()) return;
    // Written by FinishResume(), with what else has ended.
    NoteLastEvent(absl::StrCat(loaded.damage.message(),
                               " and is in quarantine; the generation has "
                               "ended"),
                  now);
    job_.unsaved = true;
    LogError("generation_lost", {{"job", job_.name},
                                 {"generation", run.generation.value()},
                                 {"reason", job_.last_event}});
    return;
  }
  run.manifest_holder = loaded.job.manifest_holder;
  job_.world_size = loaded.manifest.world_size;
  job_.min_world_size = loaded.manifest.MinWorldSize();
  run.manifest = std::make_shared<const Manifest>(std::move(loaded.manifest));
  if (job_.state != JobState::kRunning && !job_.starts_anew) {
    ExpectSurvivors(now);
  }
}

std::optional<GenerationResumed> JobMembership::Resume(absl::Time now) {
  if (job_.state != JobState::kRunning || job_.run.members.live() == 0) {
    return std::nullopt;
  }
  // Without a plan it is ended by FinishResume().
  if (job_.run.plan.version == 0) return std::nullopt;
  GenerationResumed resumed;
  resumed.begin.job = job_.name;
  resumed.begin.generation = job_.run.generation;
  resumed.begin.world_size = static_cast<int>(job_.run.members.size());
  resumed.begin.plan = job_.run.plan;
  resumed.begin.mesh = MeshOf(job_.run);
  for (MemberRecord& record : job_.run.members) {
    record.liveness = WithTimeoutsRestarted(now, record.liveness);
    if (!IsLive(record.liveness.state)) {
      resumed.left.push_back(record.member.rank);
    }
    if (record.rejoins) job_.run.making_way = now;
  }
  LogInfo("generation_resumed",
          {{"job", job_.name},
           {"generation", job_.run.generation.value()},
           {"members", job_.run.members.live()},
           {"grace", absl::FormatDuration(options().reattach_grace)}});
  return resumed;
}

void JobMembership::FinishResume(
    const std::vector<QuarantinedRecord>& quarantined, absl::Time now,
    JobEffects* effects) {
  // The last one had left when the coordinator stopped.
  if (job_.state == JobState::kRunning && job_.run.members.live() == 0) {
    EndWell(now, effects);
  }
  // Its members or its manifest could not be read.
  if (std::exchange(job_.unsaved, false)) Save(StateBatch(), effects);
  EndIfDamaged(quarantined, now, effects);
}

void JobMembership::EndIfDamaged(
    const std::vector<QuarantinedRecord>& quarantined, absl::Time now,
    JobEffects* effects) {
  if (job_.state != JobState::kRunning) return;
  std::string why;
  if (job_.run.plan.version == 0) why = "its stored plan could not be read";
  for (const QuarantinedRecord& record : quarantined) {
    if (!IsOfGeneration(record.table, job_.run.generation)) continue;
    why = absl::StrCat("a record of table '", record.table,
                       "' could not be read and is in quarantine (",
                       record.reason, ")");
  }
  if (why.empty()) return;
  LogError("generation_lost", {{"job", job_.name},
                               {"generation", job_.run.generation.value()},
                               {"reason", why}});
  EndGeneration(GenerationEndedError(
                    absl::StrCat("generation ", job_.run.generation.value(),
                                 " of job '", job_.name,
                                 "' cannot go on after a restart of the "
                                 "coordinator: ",
                                 why),
                    std::nullopt),
                nullptr, now, effects);
}

void JobMembership::Save(StateBatch batch, JobEffects* effects) {
  // One that has had no generation is not worth it.
  if (job_.run.generation == Generation(0)) return;
  PutJob(KeptOf(job_, job_.run, job_.state == JobState::kRunning), &batch);
  effects->push_back(job_effect::Save{std::move(batch)});
}

void JobMembership::NoteUnsaved(absl::Time now) {
  ++failures_;
  job_.unsaved = true;
  job_.save_again = now + kSaveInterval;
}

absl::Status JobMembership::CheckSaved() const {
  return CheckSavedSince(failures_);
}

absl::Status JobMembership::CheckSavedSince(int64_t failures) const {
  if (!job_.unsaved && failures == failures_) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("what has become of job '", job_.name,
                   "' could not be written yet; report it again"));
}

void JobMembership::SaveAgain(JobEffects* effects) {
  job_.unsaved = false;
  StateBatch batch;
  if (job_.run.finished) {
    DeleteMembers(job_.run.generation, &batch);
    DeleteManifest(job_.run.manifest_at, &batch);
  } else {
    for (const MemberRecord& record : job_.run.members) {
      if (IsLive(record.liveness.state)) continue;
      PutDeparture(job_.run.generation, record.member.rank, DepartureOf(record),
                   &batch);
      if (batch.writes().size() < StateStore::kMaxWrites / 2) continue;
      Save(std::exchange(batch, StateBatch()), effects);
    }
  }
  Save(std::move(batch), effects);
}

void JobMembership::Forget(StateBatch* batch) const {
  if (job_.run.generation == Generation(0)) return;
  DeleteJob(KeptOf(job_, job_.run, false), batch);
}

}  // namespace coxswain::server
