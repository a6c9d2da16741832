#include "server/membership/job_rules.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/membership/liveness.h"
#include "server/membership/membership_errors.h"
#include "server/membership/rank_assignment.h"

namespace coxswain::server {
namespace {

// How many lost members are named and kept.
constexpr int kMaxLostNamed = 64;

// Of the members of a finished run, how many are known again by a later term.
constexpr size_t kMaxPlaces = 1024;

bool LeftWell(const MemberRecord& record) {
  return record.liveness.state == MemberState::kLeft && !record.failed;
}

FinishedPlace PlaceOf(const MemberRecord& record) {
  return {record.member.identity, record.member.incarnation, record.launcher_id,
          LeftWell(record)};
}

void AddPlace(const MemberRecord& record, RunRecord* run) {
  if (run->places.size() < kMaxPlaces) run->places.push_back(PlaceOf(record));
}

// Returns whether the one who asks took the place of this process, or is it and
// was lost. A process that left cleanly may begin the job anew.
bool IsOf(const FinishedPlace& place, const JoinRequest& request) {
  if (!(place.identity == request.identity)) return false;
  if (place.incarnation == request.incarnation) return !place.left;
  return SameLauncher(place.launcher_id, request.launcher_id);
}

bool WasIn(const RunRecord& run, const JoinRequest& request) {
  // In this term all are known.
  const MemberRecord* const record = run.members.Find(request.identity);
  if (record != nullptr) return IsOf(PlaceOf(*record), request);
  return std::any_of(
      run.places.begin(), run.places.end(),
      [&](const FinishedPlace& place) { return IsOf(place, request); });
}

}  // namespace

bool SameLauncher(uint64_t a, uint64_t b) { return a != 0 && a == b; }

bool Survives(const JoinRequest& request, const JobRecord& job) {
  const MemberRecord* const record = job.run.members.Find(request.incarnation);
  return record != nullptr && record->member.identity == request.identity &&
         (IsLive(record->liveness.state) || record->rejoins) &&
         request.after_generation == job.run.generation;
}

void NoteSizes(JobRecord* job) {
  if (job->waiting.empty()) return;
  job->world_size = job->waiting.max();
  job->min_world_size = job->waiting.min();
}

std::map<WorkerIdentity, int> HeldRanks(const JobRecord& job) {
  std::map<WorkerIdentity, int> held;
  if (job.run.finished || job.starts_anew) return held;
  for (const MemberRecord& record : job.run.members) {
    held[record.member.identity] = record.member.rank;
  }
  return held;
}

// Returns what the last generation has shown of its plan. Its members are still
// there when the next one begins; what they reported is not after a restart.
PlanTrial TrialOf(const JobRecord& job) {
  if (job.run.members.empty()) return PlanTrial::kUnknown;
  // A program need not report its steps.
  const bool proved =
      job.run.ended_well ||
      std::any_of(
          job.run.members.begin(), job.run.members.end(),
          [](const MemberRecord& record) { return record.progress.step > 0; });
  if (proved) return PlanTrial::kProved;
  return job.run.resumed ? PlanTrial::kUnknown : PlanTrial::kFailed;
}

std::vector<LostMember> LostSince(const JobRecord& job, const MemberTable& next,
                                  int* count) {
  std::vector<LostMember> lost;
  for (const MemberRecord& record : job.run.members) {
    if (next.Find(record.member.incarnation) != nullptr) continue;
    if (++*count > kMaxLostNamed) continue;
    LostMember& one = lost.emplace_back();
    one.member = record.member;
    one.left = LeftWell(record) && !record.rejoins;
    one.reason = record.departure;
    if (record.rejoins || IsLive(record.liveness.state)) {
      one.reason = "it did not join again in time";
    }
    one.error_norm = record.progress.error_norm;
    one.error_step = record.progress.error_step;
  }
  return lost;
}

std::vector<WorkerIdentity> SparesOf(const JobRecord& job) {
  std::vector<WorkerIdentity> spares;
  for (const auto& [identity, waiter] : job.waiting.waiters()) {
    // A member that is back early makes nothing larger, nor does who waits in
    // case that a member is gone.
    const MemberRecord* const holder = job.run.members.Find(identity);
    const bool occupied = holder != nullptr && IsLive(holder->liveness.state);
    if (!occupied &&
        job.run.members.Find(waiter.member.incarnation) == nullptr) {
      spares.push_back(identity);
    }
  }
  return spares;
}

void NoteGrowth(const RunRecord& next, JobRecord* job) {
  if (!job->run.wanted_growth || !job->run.making_way.has_value()) return;
  const bool grew = std::any_of(
      next.members.begin(), next.members.end(), [&](const MemberRecord& one) {
        return job->run.members.Find(one.member.incarnation) == nullptr;
      });
  job->fruitless_regroups = grew ? 0 : job->fruitless_regroups + 1;
}

bool IsDone(const RunRecord& run) {
  // One that was asked to regroup may have left for good with work to do.
  if (run.regroups) return false;
  bool done = false;
  for (const MemberRecord& record : run.members) {
    if (IsLive(record.liveness.state) || record.rejoins) return false;
    done |= LeftWell(record);
  }
  return done;
}

void Finish(RunRecord* run) {
  run->finished = run->ended_well = true;
  for (const MemberRecord& record : run->members) {
    if (!LeftWell(record)) AddPlace(record, run);
  }
  for (const MemberRecord& record : run->members) {
    if (LeftWell(record) && record.launcher_id != 0) AddPlace(record, run);
  }
}

absl::Status CheckDone(const JoinRequest& request, const JobRecord& job) {
  const bool over = job.run.finished && job.state != JobState::kRunning;
  if (!over || job.attempt < request.attempt || !WasIn(job.run, request)) {
    return absl::OkStatus();
  }
  return JobFinishedError(
      absl::StrCat("job '", job.name, "' is done: ", job.last_event));
}

void RestartTimeouts(absl::Time now, JobRecord* job) {
  if (job->state != JobState::kRunning) return;
  for (MemberRecord& record : job->run.members) {
    record.liveness = WithTimeoutsRestarted(now, record.liveness);
  }
  if (job->run.making_way.has_value()) job->run.making_way = now;
}

KeptJob KeptOf(const JobRecord& job, const RunRecord& run, bool running) {
  KeptJob kept;
  kept.name = job.name;
  kept.generation = run.generation;
  kept.world_size = run.members.empty() ? job.world_size
                                        : static_cast<int>(run.members.size());
  kept.running = running;
  kept.finished = run.finished;
  kept.regroups = run.regroups;
  kept.unreadable = !run.finished && run.manifest == nullptr;
  kept.places = run.places;
  // One that runs has begun anew.
  kept.starts_anew = job.starts_anew && !running;
  kept.attempt = job.attempt;
  kept.step = run.last_step;
  kept.last_event = job.last_event;
  kept.last_event_date = job.last_event_date;
  kept.reason = run.reason;
  kept.manifest = run.manifest_at;
  kept.manifest_holder = run.manifest_holder;
  kept.previous.generation = run.previous;
  kept.previous.world_size = run.previous_world_size;
  kept.previous.lost_count = run.lost_count;
  if (run.lost != nullptr) kept.previous.lost = *run.lost;
  return kept;
}

Departure DepartureOf(const MemberRecord& record) {
  Departure departure;
  departure.left = LeftWell(record);
  departure.rejoins = record.rejoins;
  departure.reason = record.departure;
  departure.error_norm = record.progress.error_norm;
  departure.error_step = record.progress.error_step;
  departure.step = record.progress.step;
  return departure;
}

Mesh MeshOf(const RunRecord& run) {
  if (run.manifest == nullptr || run.manifest->mesh.empty()) return Mesh();
  const auto mesh = Mesh::Parse(run.manifest->mesh);
  if (!mesh.ok()) return Mesh();
  return mesh->Fit(static_cast<int>(run.members.size())).value_or(Mesh());
}

std::string PlacementOf(const RunRecord& run) {
  const Mesh mesh = MeshOf(run);
  if (mesh.empty()) return "";
  std::vector<std::string> hosts;
  hosts.reserve(run.members.size());
  for (const MemberRecord& record : run.members) {
    hosts.push_back(record.member.host);
  }
  return PlacementHint(mesh, hosts);
}

std::vector<Member> PresentIn(const JobRecord& job) {
  std::vector<Member> members;
  for (const auto& entry : job.waiting.waiters()) {
    members.push_back(entry.second.member);
  }
  if (job.waiting.size() == job.waiting.max()) {
    AssignRanks(HeldRanks(job), &members);
    AssignCoordinates(job.waiting.manifests().mesh(), &members);
  } else {
    std::sort(members.begin(), members.end(), TopologyLess);
  }
  return members;
}

}  // namespace coxswain::server
