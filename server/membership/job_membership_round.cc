// The part of JobMembership that makes a generation of the waiting workers.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/membership/job_membership.h"
#include "server/membership/job_rules.h"
#include "server/membership/manifest_check.h"
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

RoundOptions JobMembership::CurrentRoundOptions() const {
  RoundOptions round;
  round.min = job_.waiting.min();
  round.max = job_.waiting.max();
  round.last_call = options().last_call;
  round.mismatch_settle = options().mismatch_settle;
  return round;
}

void JobMembership::LookAtRound(absl::Time now, JobEffects* effects) {
  if (job_.state != JobState::kForming || commit_ != nullptr) return;
  const RoundVerdict verdict =
      DecideRound(now, job_.waiting.State(), CurrentRoundOptions());
  switch (verdict.decision) {
    case RoundDecision::kWait:
      break;
    case RoundDecision::kClose:
      CloseRound(verdict.reason, effects);
      break;
    case RoundDecision::kRefuse:
      RefuseRound(verdict.reason, now, effects);
      break;
    case RoundDecision::kExpire:
      ExpireWaiters(verdict.reason, now, effects);
      break;
  }
}

void JobMembership::CloseRound(absl::string_view reason, JobEffects* effects) {
  std::vector<Member> members;
  for (const WorkerIdentity& identity :
       job_.waiting.Choose(job_.waiting.max())) {
    members.push_back(job_.waiting.Find(identity)->member);
  }
  AssignRanks(HeldRanks(job_), &members);
  AssignCoordinates(job_.waiting.manifests().manifest().mesh, &members);
  CommitRun(NextRun(reason, std::move(members)), effects);
}

RunRecord JobMembership::NextRun(absl::string_view reason,
                                 std::vector<Member> members) {
  RunRecord run;
  // A number whose commit failed is skipped.
  run.generation = coordinator_->next_generation();
  run.reason = std::string(reason);
  run.data_key = coordinator_->new_data_key();
  std::vector<MemberRecord> records;
  for (Member& member : members) {
    MemberRecord& record = records.emplace_back();
    record.launcher_id = job_.waiting.Find(member.identity)->launcher_id;
    record.member = std::move(member);
  }
  run.members = MemberTable(std::move(records));
  run.manifest = job_.waiting.manifests().shared();
  run.manifest_holder = job_.waiting.manifests().holder();
  const bool unchanged = job_.run.manifest != nullptr &&
                         SameManifest(*job_.run.manifest, *run.manifest);
  run.manifest_at = unchanged ? job_.run.manifest_at : run.generation;
  if (unchanged) run.manifest = job_.run.manifest;
  if (job_.run.finished || job_.starts_anew) return run;
  run.previous = job_.run.generation;
  run.previous_world_size = static_cast<int>(job_.run.members.size());
  run.lost = std::make_shared<const std::vector<LostMember>>(
      LostSince(job_, run.members, &run.lost_count));
  return run;
}

void JobMembership::BeginRun(RunRecord run, absl::Time now,
                             JobEffects* effects) {
  run.began = now;
  for (MemberRecord& record : run.members) record.liveness.last_sign = now;
  NoteGrowth(run, &job_);
  job_.run = std::move(run);
  job_.state = JobState::kRunning;
  job_.withdrawn.clear();
  job_.refusal.reset();
  job_.unsaved = job_.starts_anew = false;
  job_.world_size = job_.run.manifest->world_size;
  job_.min_world_size = job_.run.manifest->MinWorldSize();
  LogInfo("generation_began", {{"job", job_.name},
                               {"generation", job_.run.generation.value()},
                               {"world_size", job_.run.members.size()},
                               {"plan_version", job_.run.plan.version},
                               {"plan", job_.run.plan.version},
                               {"reason", job_.run.reason}});
  LookAtPlacement();
  GenerationBegin begin;
  begin.job = job_.name;
  begin.generation = job_.run.generation;
  begin.world_size = static_cast<int>(job_.run.members.size());
  begin.plan = job_.run.plan;
  begin.mesh = MeshOf(job_.run);
  effects->push_back(job_effect::NotifyBegan{std::move(begin)});
  // Another thread may carry out the notices: the answers to the members are
  // sent after this one.
  job_effect::Announce announce;
  announce.generation = job_.run.generation;
  announce.answers.reserve(job_.run.members.size());
  for (const MemberRecord& record : job_.run.members) {
    announce.answers.push_back(
        AnswerOf(record.member.identity, ResultFor(record.member.rank), now));
  }
  announcing_.try_emplace(announce.generation);
  effects->push_back(std::move(announce));
  // Workers beyond the world size wait on.
  job_.waiting.ExpectNobody();
  job_.waiting.Begin(now, absl::InfinitePast());
}

void JobMembership::LookAtPlacement() const {
  const std::string hint = PlacementOf(job_.run);
  if (hint.empty()) return;
  LogWarning("mesh_spans_hosts", {{"job", job_.name},
                                  {"generation", job_.run.generation.value()},
                                  {"mesh", MeshOf(job_.run).ToString()},
                                  {"reason", hint}});
}

absl::Status JobMembership::AnswerAgain(job_effect::Answer answer,
                                        JobEffects* effects) {
  const auto announcing = announcing_.find(job_.run.generation);
  if (announcing == announcing_.end()) {
    effects->push_back(std::move(answer));
    return absl::OkStatus();
  }
  std::vector<job_effect::Answer>& waiting = announcing->second;
  const size_t limit = 2 * job_.run.members.size();
  if (waiting.size() >= limit) {
    return absl::UnavailableError(absl::StrCat(
        "generation ", job_.run.generation.value(), " of job '", job_.name,
        "' begins, and ", limit, " have asked for it again: ask later"));
  }
  waiting.push_back(std::move(answer));
  return absl::OkStatus();
}

void JobMembership::Announced(Generation generation, JobEffects* effects) {
  const auto found = announcing_.find(generation);
  if (found == announcing_.end()) return;
  for (job_effect::Answer& answer : found->second) {
    effects->push_back(std::move(answer));
  }
  announcing_.erase(found);
}

JoinResult JobMembership::ResultFor(int rank) const {
  JoinResult result;
  result.cluster_id = coordinator_->cluster_id;
  result.term = coordinator_->term;
  result.generation = job_.run.generation;
  result.rank = rank;
  result.members = job_.run.members.list();
  result.unreachable = job_.run.members.unreachable();
  result.plan = job_.run.plan;
  result.heartbeat_interval = HeartbeatInterval(
      options().heartbeat_interval, job_.run.plan.terms.stall_timeout);
  result.lease = options().lease;
  result.previous = job_.run.previous;
  result.previous_world_size = job_.run.previous_world_size;
  result.lost = job_.run.lost;
  result.lost_count = job_.run.lost_count;
  result.reason = job_.run.reason;
  result.data_key = job_.run.data_key;
  return result;
}

job_effect::Answer JobMembership::AnswerOf(const WorkerIdentity& identity,
                                           absl::StatusOr<JoinResult> result,
                                           absl::Time now) {
  Waiter waiter = job_.waiting.Take(identity, now);
  return {waiter.join_id, std::move(waiter.callback), std::move(result), {}};
}

void JobMembership::Answer(const WorkerIdentity& identity,
                           const absl::Status& status, absl::Time now,
                           JobEffects* effects) {
  const Incarnation incarnation =
      job_.waiting.Find(identity)->member.incarnation;
  effects->push_back(AnswerOf(identity, status, now));
  // It has not been silent while it waited.
  NoteSign(incarnation, now);
}

void JobMembership::AnswerAll(const absl::Status& status, absl::Time now,
                              JobEffects* effects) {
  for (const WorkerIdentity& identity : job_.waiting.Identities()) {
    Answer(identity, status, now, effects);
  }
}

void JobMembership::ExpireWaiters(absl::string_view reason, absl::Time now,
                                  JobEffects* effects) {
  const std::vector<WorkerIdentity> present = job_.waiting.Identities();
  const std::map<int, WorkerIdentity> awaited = job_.waiting.Awaited();
  std::vector<int> missing_ranks;
  for (const auto& entry : awaited) missing_ranks.push_back(entry.first);
  std::string text = absl::StrCat("job '", job_.name,
                                  "' did not become complete in time: ", reason,
                                  "; here: ", NameWorkers(present));
  if (!awaited.empty()) {
    absl::StrAppend(&text, "; not back: ", NameAwaited(awaited));
  }
  const absl::Status status =
      MissingMembersError(text, job_.waiting.min(), present, missing_ranks);
  for (const WorkerIdentity& identity : present) {
    if (now < job_.waiting.DeadlineOf(*job_.waiting.Find(identity))) continue;
    Answer(identity, status, now, effects);
  }
  NoteLastEvent(text, now);
  LogWarning("join_expired", {{"job", job_.name}, {"reason", text}});
  NoteSizes(&job_);
  if (!job_.waiting.empty()) return;
  job_.state = JobState::kEnded;
  job_.ended_at = now;
}

void JobMembership::GiveUpRound(const absl::Status& status, absl::Time now,
                                JobEffects* effects) {
  EndRound(status, now, effects);
  LogWarning("round_given_up",
             {{"job", job_.name}, {"reason", job_.last_event}});
}

void JobMembership::EndRound(const absl::Status& status, absl::Time now,
                             JobEffects* effects) {
  AnswerAll(status, now, effects);
  job_.withdrawn.clear();
  job_.state = JobState::kEnded;
  job_.ended_at = now;
  NoteLastEvent(status.message(), now);
}

void JobMembership::LookAtGrowth(absl::Time now, JobEffects* effects) {
  RunRecord& run = job_.run;
  if (job_.waiting.empty() && !run.wants_growth) return;
  // It is on its way.
  if (run.making_way.has_value()) return;
  const std::vector<WorkerIdentity> spares = SparesOf(job_);
  GrowthState state;
  state.world_size = static_cast<int>(run.members.size());
  state.spares = static_cast<int>(spares.size());
  state.last_arrival = job_.waiting.last_arrival();
  state.began = run.began;
  state.members_left = run.members.live() < state.world_size;
  GrowthOptions growth;
  growth.max = job_.world_size;
  growth.settle = options().growth_settle;
  growth.min_age = GrowthAge(options().growth_min_age, job_.fruitless_regroups);
  // One that has caught up is sent each further step: for no longer than that.
  growth.catch_up_age = growth.min_age - options().growth_min_age;
  const GrowthDecision decision = DecideGrowth(now, state, growth);
  const bool wanted = decision == GrowthDecision::kRegroup;
  if (!run.wants_growth) {
    if (decision == GrowthDecision::kWait) return;
    if (AwaitCatchUp(spares, now, effects) || !wanted) return;
  }
  run.wants_growth = wanted;
  run.wanted_growth = true;
  std::string reason;
  if (wanted) {
    reason = absl::StrCat(spares.size() == 1
                              ? "a worker waits"
                              : absl::StrCat(spares.size(), " workers wait"),
                          " to join: ", NameWorkers(spares));
  }
  effects->push_back(
      job_effect::NotifyRegroupWanted{run.generation, std::move(reason)});
}

bool JobMembership::AwaitCatchUp(const std::vector<WorkerIdentity>& spares,
                                 absl::Time now, JobEffects* effects) {
  const RunRecord& run = job_.run;
  // No decision would ask for it.
  if (run.plan.terms.enforcement == schedule::Enforcement::kOff) return false;
  const size_t room = static_cast<size_t>(job_.world_size) - run.members.size();
  const size_t most = std::min(room, schedule::kMaxNewcomers);
  job_effect::NotifyCatchUpWanted wanted{run.generation, {}};
  size_t count = 0;
  bool unsettled = false;
  absl::Time first = now;
  for (const WorkerIdentity& identity : spares) {
    const Incarnation incarnation =
        job_.waiting.Find(identity)->member.incarnation;
    Waiter* const waiter = job_.waiting.FindMutable(incarnation);
    // Of one that was to have the state of the generation before nothing more
    // is to be hoped for.
    if (waiter->catch_up.address.empty() ||
        waiter->catching_up_since < run.began || ++count > most) {
      continue;
    }
    if (waiter->catching_up_since == absl::InfiniteFuture()) {
      waiter->catching_up_since = now;
      wanted.newcomers.push_back(waiter->catch_up);
      LogInfo("catches_up", {{"job", job_.name},
                             {"generation", run.generation.value()},
                             {"worker", identity.ToString()}});
    }
    first = std::min(first, waiter->catching_up_since);
    unsettled |= waiter->settled_by.empty();
  }
  if (!wanted.newcomers.empty()) effects->push_back(std::move(wanted));
  return unsettled && now < first + options().catch_up_timeout;
}

}  // namespace coxswain::server
