// The part of Membership that makes a generation of those who wait.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/membership/job_rules.h"
#include "server/membership/manifest_check.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"
#include "server/membership/rank_assignment.h"
#include "server/membership/round.h"

namespace coxswain::server {
namespace {

std::string NameAwaited(const std::map<int, WorkerIdentity>& awaited) {
  std::vector<WorkerIdentity> workers;
  for (const auto& entry : awaited) workers.push_back(entry.second);
  return NameWorkers(workers);
}

}  // namespace

void Membership::DecideRoundLocked(Job* job, Calls* calls) {
  DecideRoundLocked(rooms_.clock->Now(), job, calls);
}

void Membership::DecideRoundLocked(absl::Time now, Job* job, Calls* calls) {
  if (job->state != JobState::kForming || job->commit != nullptr) return;
  RoundOptions options;
  options.min = job->room.min();
  options.max = job->room.max();
  options.last_call = options_.last_call;
  options.mismatch_settle = options_.mismatch_settle;
  const RoundVerdict verdict = DecideRound(now, job->room.State(), options);
  switch (verdict.decision) {
    case RoundDecision::kWait:
      break;
    case RoundDecision::kClose:
      CloseRoundLocked(verdict.reason, job, calls);
      break;
    case RoundDecision::kRefuse:
      RefuseRoundLocked(verdict.reason, job, calls);
      break;
    case RoundDecision::kExpire:
      ExpireWaitersLocked(verdict.reason, job, calls);
      break;
  }
}

void Membership::CloseRoundLocked(absl::string_view reason, Job* job,
                                  Calls* calls) {
  std::vector<Member> members;
  for (const WorkerIdentity& identity : job->room.Choose(job->room.max())) {
    members.push_back(job->room.Find(identity)->member);
  }
  AssignRanks(HeldRanks(*job), &members);
  CommitRunLocked(NextRunLocked(reason, std::move(members), *job), job, calls);
}

Membership::Run Membership::NextRunLocked(absl::string_view reason,
                                          std::vector<Member> members,
                                          const Job& job) {
  Run run;
  // A number whose commit failed is skipped.
  run.generation = Generation(next_generation_++);
  run.reason = std::string(reason);
  std::vector<MemberRecord> records;
  for (Member& member : members) {
    MemberRecord& record = records.emplace_back();
    record.launcher_id = job.room.Find(member.identity)->launcher_id;
    record.member = std::move(member);
  }
  run.members = MemberTable(std::move(records));
  run.manifest = job.room.manifests().shared();
  run.manifest_holder = job.room.manifests().holder();
  const bool unchanged = job.run.manifest != nullptr &&
                         SameManifest(*job.run.manifest, *run.manifest);
  run.manifest_at = unchanged ? job.run.manifest_at : run.generation;
  if (unchanged) run.manifest = job.run.manifest;
  if (job.run.finished || job.starts_anew) return run;
  run.previous = job.run.generation;
  run.previous_world_size = static_cast<int>(job.run.members.size());
  run.lost = std::make_shared<const std::vector<LostMember>>(
      LostSince(job, run.members, &run.lost_count));
  return run;
}

void Membership::BeginRunLocked(Run run, Job* job, Calls* calls) {
  const absl::Time now = run.began = rooms_.clock->Now();
  for (MemberRecord& record : run.members) record.liveness.last_sign = now;
  NoteGrowth(run, job);
  job->run = std::move(run);
  job->state = JobState::kRunning;
  job->withdrawn.clear();
  job->refusal.reset();
  job->unsaved = job->starts_anew = false;
  job->world_size = job->run.manifest->world_size;
  job->min_world_size = job->run.manifest->MinWorldSize();
  LogInfo("generation_began", {{"job", job->name},
                               {"generation", job->run.generation.value()},
                               {"world_size", job->run.members.size()},
                               {"plan", job->run.plan.version},
                               {"reason", job->run.reason}});
  GenerationBegin begin;
  begin.job = job->name;
  begin.generation = job->run.generation;
  begin.world_size = static_cast<int>(job->run.members.size());
  begin.plan = job->run.plan;
  NotifyLocked(
      [begin](GenerationObserver* observer) {
        observer->OnGenerationBegan(begin);
      },
      job, calls);
  // Another thread may be at the notices: no member hears of it before it has
  // made that one.
  Calls answers;
  for (const MemberRecord& record : job->run.members) {
    AnswerLocked(record.member.identity, ResultLocked(*job, record.member.rank),
                 job, &answers);
  }
  AnnounceLocked(job, &answers);
  CallInOrderLocked(std::move(answers), job, calls);
  // Those for whom there was no room wait on.
  job->room.ExpectNobody();
  job->room.Begin(now, absl::InfinitePast());
}

// Last of the calls that begin a generation.
void Membership::AnnounceLocked(Job* job, Calls* calls) {
  job->run.announcement = std::make_shared<Announcement>();
  calls->push_back([this, announcement = job->run.announcement] {
    Calls answers;
    {
      MutexLock lock(&mutex_);
      announcement->done = true;
      answers.swap(announcement->waiting);
    }
    RunAll(answers);
  });
}

absl::Status Membership::AnswerAgainLocked(std::function<void()> answer,
                                           Job* job, Calls* calls) {
  Announcement* const announcement = job->run.announcement.get();
  if (announcement == nullptr || announcement->done) {
    calls->push_back(std::move(answer));
    return absl::OkStatus();
  }
  const size_t limit = 2 * job->run.members.size();
  if (announcement->waiting.size() >= limit) {
    return absl::UnavailableError(absl::StrCat(
        "generation ", job->run.generation.value(), " of job '", job->name,
        "' begins, and ", limit, " have asked for it again: ask later"));
  }
  announcement->waiting.push_back(std::move(answer));
  return absl::OkStatus();
}

JoinResult Membership::ResultLocked(const Job& job, int rank) const {
  JoinResult result;
  result.cluster_id = cluster_id_;
  result.term = term_;
  result.generation = job.run.generation;
  result.rank = rank;
  result.members = job.run.members.list();
  result.unreachable = job.run.members.unreachable();
  result.plan = job.run.plan;
  result.heartbeat_interval = options_.heartbeat_interval;
  result.lease = options_.lease;
  result.previous = job.run.previous;
  result.previous_world_size = job.run.previous_world_size;
  result.lost = job.run.lost;
  result.lost_count = job.run.lost_count;
  result.reason = job.run.reason;
  return result;
}

void Membership::AnswerLocked(const WorkerIdentity& identity,
                              absl::StatusOr<JoinResult> answer, Job* job,
                              Calls* calls) {
  Waiter waiter = job->room.Take(identity, rooms_.clock->Now());
  tickets_.erase(waiter.ticket);
  calls->push_back([callback = std::move(waiter.callback),
                    answer = std::move(answer)] { callback(answer); });
}

void Membership::AnswerAllLocked(const absl::Status& status, Job* job,
                                 Calls* calls) {
  for (const WorkerIdentity& identity : job->room.Identities()) {
    AnswerLocked(identity, status, job, calls);
  }
}

void Membership::ExpireWaitersLocked(absl::string_view reason, Job* job,
                                     Calls* calls) {
  const absl::Time now = rooms_.clock->Now();
  const std::vector<WorkerIdentity> present = job->room.Identities();
  const std::map<int, WorkerIdentity> awaited = job->room.Awaited();
  std::vector<int> missing_ranks;
  for (const auto& entry : awaited) missing_ranks.push_back(entry.first);
  std::string text = absl::StrCat("job '", job->name,
                                  "' did not become complete in time: ", reason,
                                  "; here: ", NameWorkers(present));
  if (!awaited.empty()) {
    absl::StrAppend(&text, "; not back: ", NameAwaited(awaited));
  }
  const absl::Status status =
      MissingMembersError(text, job->room.min(), present, missing_ranks);
  for (const WorkerIdentity& identity : present) {
    if (now < job->room.DeadlineOf(*job->room.Find(identity))) continue;
    AnswerLocked(identity, status, job, calls);
  }
  job->last_event = text;
  LogWarning("join_expired", {{"job", job->name}, {"reason", text}});
  NoteSizes(job);
  if (!job->room.empty()) return;
  job->state = JobState::kEnded;
  job->ended_at = now;
}

void Membership::GiveUpRoundLocked(const absl::Status& status, Job* job,
                                   Calls* calls) {
  EndRoundLocked(status, job, calls);
  LogWarning("round_given_up",
             {{"job", job->name}, {"reason", job->last_event}});
}

void Membership::EndRoundLocked(const absl::Status& status, Job* job,
                                Calls* calls) {
  AnswerAllLocked(status, job, calls);
  job->withdrawn.clear();
  job->state = JobState::kEnded;
  job->ended_at = rooms_.clock->Now();
  job->last_event = std::string(status.message());
}

void Membership::DecideGrowthLocked(absl::Time now, Job* job, Calls* calls) {
  Run& run = job->run;
  if (job->room.empty() && !run.wants_growth) return;
  // It is on its way.
  if (run.making_way.has_value()) return;
  const std::vector<WorkerIdentity> spares = SparesOf(*job);
  GrowthState state;
  state.world_size = static_cast<int>(run.members.size());
  state.spares = static_cast<int>(spares.size());
  state.last_arrival = job->room.last_arrival();
  state.began = run.began;
  state.members_left = run.members.live() < state.world_size;
  GrowthOptions options;
  options.max = job->world_size;
  options.settle = options_.growth_settle;
  options.min_age = GrowthAge(options_.growth_min_age, job->vain_regroups);
  const bool wanted = DecideGrowth(now, state, options);
  if (!wanted && !run.wants_growth) return;
  run.wants_growth = wanted;
  run.wanted_growth = true;
  std::string reason;
  if (wanted) {
    reason = absl::StrCat(spares.size() == 1
                              ? "a worker waits"
                              : absl::StrCat(spares.size(), " workers wait"),
                          " to join: ", NameWorkers(spares));
  }
  NotifyLocked(
      [name = job->name, generation = run.generation,
       reason](GenerationObserver* observer) {
        observer->OnRegroupWanted(name, generation, reason);
      },
      job, calls);
}

}  // namespace coxswain::server
