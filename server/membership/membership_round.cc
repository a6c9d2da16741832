// The part of Membership that forms a generation: joins and rounds.

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/membership/job_name.h"
#include "server/membership/manifest_check.h"
#include "server/membership/manifest_diff.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"
#include "server/membership/rank_assignment.h"

namespace coxswain::server {
namespace {

constexpr int kMaxSlot = 65535;

// Names end up in logs and error messages: no spaces, no control characters.
absl::Status CheckName(absl::string_view what, absl::string_view name,
                       int max_bytes) {
  const bool valid = name.size() <= static_cast<size_t>(max_bytes) &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) {
                       return c > ' ' && c != 0x7f;
                     });
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " must have at most ", max_bytes,
                   " bytes without spaces or control characters, unlike '",
                   absl::CHexEscape(name.substr(0, max_bytes)), "'"));
}

absl::Status JobRunsWithAnotherManifest(
    absl::string_view job, const std::vector<std::string>& differences) {
  return ManifestMismatchError(
      absl::StrCat("job '", job, "' already runs with another manifest"),
      differences);
}

absl::Status IdentityTaken(absl::string_view job,
                           const WorkerIdentity& identity) {
  return absl::AlreadyExistsError(absl::StrCat(
      "another live process is worker ", identity.ToString(), " of job '", job,
      "'; give each launcher on a machine its own --node, or choose another "
      "--job name"));
}

bool SameLauncher(uint64_t a, uint64_t b) { return a != 0 && a == b; }

}  // namespace

absl::Status Membership::CheckJoin(const JoinRequest& request) const {
  COXSWAIN_RETURN_IF_ERROR(ValidateJobName(request.job));
  if (request.identity.node.empty()) {
    return absl::InvalidArgumentError("identity.node is empty");
  }
  const int max_name = options_.max_name_bytes;
  COXSWAIN_RETURN_IF_ERROR(
      CheckName("identity.node", request.identity.node, max_name));
  COXSWAIN_RETURN_IF_ERROR(CheckName("host", request.host, max_name));
  COXSWAIN_RETURN_IF_ERROR(CheckName("address", request.address, max_name));
  if (request.identity.slot < 0 || request.identity.slot > kMaxSlot) {
    return absl::InvalidArgumentError(
        absl::StrCat("identity.slot must be 0 to ", kMaxSlot, ", not ",
                     request.identity.slot));
  }
  if (request.incarnation == Incarnation(0)) {
    return absl::InvalidArgumentError("incarnation must not be 0");
  }
  if (request.topology.size() >
      static_cast<size_t>(options_.max_topology_keys)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        request.topology.size(), " topology keys; max_topology_keys is ",
        options_.max_topology_keys));
  }
  for (const std::string& key : request.topology) {
    COXSWAIN_RETURN_IF_ERROR(
        CheckName("a topology key", key, options_.max_topology_key_bytes));
  }
  if (request.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("timeout_ms must be more than 0");
  }
  return CheckManifest(request.manifest, options_);
}

uint64_t Membership::Join(JoinRequest request, JoinCallback callback) {
  absl::Status status = CheckJoin(request);
  uint64_t ticket = 0;
  Calls calls;
  if (status.ok()) {
    NormaliseManifest(&request.manifest);
    MutexLock lock(&mutex_);
    status = JoinLocked(&request, &callback, &ticket, &calls);
  }
  if (!status.ok()) {
    LogInfo("join_refused",
            {{"job", absl::CHexEscape(request.job)},
             {"worker", absl::CHexEscape(request.identity.ToString())},
             {"reason", status.message()}});
  }
  for (const auto& call : calls) call();
  if (!status.ok()) callback(status);
  return ticket;
}

absl::Status Membership::JoinLocked(JoinRequest* request,
                                    JoinCallback* callback, uint64_t* ticket,
                                    Calls* calls) {
  if (shut_down_) return absl::UnavailableError("coordinator shuts down");
  COXSWAIN_ASSIGN_OR_RETURN(Job* const job, FindOrAddJobLocked(request->job));
  COXSWAIN_RETURN_IF_ERROR(CheckRefusalLocked(*request, job));
  if (job->state == JobState::kRunning) {
    auto answer = JoinRunningLocked(*request, job, calls);
    if (answer.has_value()) {
      COXSWAIN_RETURN_IF_ERROR(answer->status());
      calls->push_back([callback = *callback, answer = *std::move(answer)] {
        callback(answer);
      });
      return absl::OkStatus();
    }
  }
  COXSWAIN_RETURN_IF_ERROR(EnterRoundLocked(request, job, calls));

  const absl::Time now = rooms_.clock->Now();
  Waiter waiter;
  waiter.member.identity = request->identity;
  waiter.member.incarnation = request->incarnation;
  waiter.member.host = std::move(request->host);
  waiter.member.address = std::move(request->address);
  waiter.member.topology = std::move(request->topology);
  waiter.launcher_id = request->launcher_id;
  waiter.ticket = *ticket = next_handle_++;
  waiter.deadline = now + std::min(request->timeout, options_.max_join_timeout);
  waiter.callback = *callback;
  tickets_[waiter.ticket] = {job->name, request->identity};
  job->withdrawn.erase(request->incarnation);
  job->waiting[request->identity] = std::move(waiter);
  job->last_arrival = now;
  LogInfo("joined", {{"job", job->name},
                     {"worker", request->identity.ToString()},
                     {"present", job->waiting.size()},
                     {"world_size", job->world_size}});
  DecideRoundLocked(job, calls);
  return absl::OkStatus();
}

std::optional<absl::StatusOr<JoinResult>> Membership::JoinRunningLocked(
    const JoinRequest& request, Job* job, Calls* calls) {
  const std::vector<std::string> differences =
      DiffManifests(job->manifests.manifest(),
                    job->manifests.holder().ToString(), request.manifest);
  if (!differences.empty()) {
    return JobRunsWithAnotherManifest(job->name, differences);
  }
  const auto record = std::find_if(
      job->members.begin(), job->members.end(), [&](const MemberRecord& m) {
        return m.member.identity == request.identity;
      });
  if (record == job->members.end() || !IsLive(record->liveness.state)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job '", job->name, "' is running with all ", job->members.size(),
        " ranks taken; choose another --job name or wait"));
  }
  if (record->member.incarnation == request.incarnation) {
    return ResultLocked(*job, record->member.rank);
  }
  if (!SameLauncher(record->launcher_id, request.launcher_id) &&
      record->liveness.state != MemberState::kDetached) {
    return IdentityTaken(job->name, request.identity);
  }
  LoseMemberLocked("a new process took its place", &*record, job, calls);
  return std::nullopt;
}

absl::Status Membership::EnterRoundLocked(JoinRequest* request, Job* job,
                                          Calls* calls) {
  const auto old = job->waiting.find(request->identity);
  const bool taken = old != job->waiting.end();
  const bool replaces =
      taken && (old->second.member.incarnation == request->incarnation ||
                SameLauncher(old->second.launcher_id, request->launcher_id));
  // Whoever waits alone is bound to nobody, and nor is who replaces him.
  const bool first =
      job->waiting.empty() || (replaces && job->waiting.size() == 1);
  if (!first) {
    for (const auto& [identity, waiter] : job->waiting) {
      if (waiter.member.incarnation == request->incarnation &&
          !(identity == request->identity)) {
        return absl::InvalidArgumentError(
            absl::StrCat("worker ", identity.ToString(),
                         " has the same incarnation; it must be random"));
      }
    }
  }
  if (taken && !replaces) return IdentityTaken(job->name, request->identity);
  if (replaces) {
    AnswerLocked(&old->second,
                 absl::CancelledError("a later Join of the same worker took "
                                      "this one's place"),
                 calls);
    job->waiting.erase(old);
  }
  if (first) {
    job->state = JobState::kForming;
    job->withdrawn.clear();
    job->manifests.Clear();
    job->mismatch_since = absl::InfiniteFuture();
  }
  job->manifests.Put(request->identity, std::move(request->manifest));
  NoteAgreementLocked(job);
  return absl::OkStatus();
}

absl::StatusOr<Membership::Job*> Membership::FindOrAddJobLocked(
    const std::string& name) {
  const auto found = jobs_.find(name);
  if (found != jobs_.end()) return &found->second;
  if (jobs_.size() >= static_cast<size_t>(options_.max_jobs)) {
    auto oldest = jobs_.end();
    for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
      if (it->second.state != JobState::kEnded) continue;
      if (oldest == jobs_.end() ||
          it->second.ended_at < oldest->second.ended_at) {
        oldest = it;
      }
    }
    if (oldest == jobs_.end()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the coordinator has ", jobs_.size(),
                       " unfinished jobs; max_jobs is ", options_.max_jobs));
    }
    jobs_.erase(oldest);
  }
  Job& job = jobs_[name];
  job.name = name;
  job.ended_at = rooms_.clock->Now();
  return &job;
}

void Membership::DecideRoundLocked(Job* job, Calls* calls) {
  RoundState state;
  state.last_arrival = job->last_arrival;
  state.first_deadline = absl::InfiniteFuture();
  for (const auto& [identity, waiter] : job->waiting) {
    state.present.push_back(identity);
    state.first_deadline = std::min(state.first_deadline, waiter.deadline);
  }
  state.mismatch_since = job->mismatch_since;
  RoundOptions options;
  options.min = options.max = job->world_size;
  options.last_call = options_.last_call;
  options.mismatch_settle = options_.mismatch_settle;
  const RoundVerdict verdict = DecideRound(rooms_.clock->Now(), state, options);
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
  for (const auto& entry : job->waiting) {
    members.push_back(entry.second.member);
  }
  AssignRanks(job->held, &members);
  const absl::Status committed = CommitGenerationLocked(job);
  if (!committed.ok()) {
    GiveUpRoundLocked(committed, job, calls);
    return;
  }
  LivenessState liveness;
  liveness.last_sign = rooms_.clock->Now();
  job->state = JobState::kRunning;
  job->members.clear();
  job->ended_well = false;
  for (const Member& member : members) {
    MemberRecord record;
    record.member = member;
    record.launcher_id = job->waiting[member.identity].launcher_id;
    record.liveness = liveness;
    job->members.push_back(std::move(record));
  }
  job->member_list =
      std::make_shared<const std::vector<Member>>(std::move(members));
  LogInfo("generation_began", {{"job", job->name},
                               {"generation", job->generation.value()},
                               {"world_size", job->members.size()},
                               {"plan", job->plan.version},
                               {"reason", reason}});
  GenerationBegin begin;
  begin.job = job->name;
  begin.generation = job->generation;
  begin.world_size = static_cast<int>(job->members.size());
  begin.plan = job->plan;
  calls->push_back([observers = observers_, begin] {
    for (GenerationObserver* observer : observers) {
      observer->OnGenerationBegan(begin);
    }
  });
  for (const Member& member : *job->member_list) {
    AnswerLocked(&job->waiting[member.identity],
                 ResultLocked(*job, member.rank), calls);
  }
  job->waiting.clear();
  job->withdrawn.clear();
  job->refusal.reset();
}

absl::Status Membership::CommitGenerationLocked(Job* job) {
  // A number whose commit failed is skipped.
  const Generation generation(next_generation_++);
  GenerationStart start;
  start.job = job->name;
  start.generation = generation;
  const Manifest& manifest = job->manifests.manifest();
  start.hook = manifest.hook;
  start.accumulation_steps = manifest.accumulation_steps;
  start.compression_start_step = manifest.compression_start_step;
  start.terms = manifest.terms;
  start.world_size = static_cast<int>(job->waiting.size());
  start.last = TrialOf(*job);
  start.batch.Put(kClusterTable, kNextGenerationKey,
                  absl::StrCat(next_generation_));
  COXSWAIN_ASSIGN_OR_RETURN(Plan plan,
                            rooms_.plans->BeginGeneration(std::move(start)));
  job->generation = generation;
  job->plan = std::move(plan);
  return absl::OkStatus();
}

// What the last generation has shown of its plan. Its members are still there
// when the next one begins, unless the coordinator was restarted meanwhile.
PlanTrial Membership::TrialOf(const Job& job) {
  if (job.members.empty()) return PlanTrial::kUnknown;
  // A program need not report its steps.
  const bool proved =
      job.ended_well || std::any_of(job.members.begin(), job.members.end(),
                                    [](const MemberRecord& record) {
                                      return record.progress.step > 0;
                                    });
  return proved ? PlanTrial::kProved : PlanTrial::kFailed;
}

JoinResult Membership::ResultLocked(const Job& job, int rank) const {
  JoinResult result;
  result.cluster_id = cluster_id_;
  result.term = term_;
  result.generation = job.generation;
  result.rank = rank;
  result.members = job.member_list;
  result.plan = job.plan;
  result.heartbeat_interval = options_.heartbeat_interval;
  result.lease = options_.lease;
  return result;
}

void Membership::AnswerLocked(Waiter* waiter, absl::StatusOr<JoinResult> answer,
                              Calls* calls) {
  tickets_.erase(waiter->ticket);
  calls->push_back([callback = std::move(waiter->callback),
                    answer = std::move(answer)] { callback(answer); });
}

void Membership::ExpireWaitersLocked(absl::string_view reason, Job* job,
                                     Calls* calls) {
  const absl::Time now = rooms_.clock->Now();
  const std::string text = absl::StrCat(
      "job '", job->name, "' did not become complete in time: ", reason);
  std::vector<WorkerIdentity> present;
  for (const auto& entry : job->waiting) present.push_back(entry.first);
  const absl::Status status =
      MissingMembersError(text, job->world_size, present);
  for (auto it = job->waiting.begin(); it != job->waiting.end();) {
    if (now < it->second.deadline) {
      ++it;
      continue;
    }
    AnswerLocked(&it->second, status, calls);
    job->manifests.Remove(it->first);
    it = job->waiting.erase(it);
  }
  job->last_event = text;
  LogWarning("join_expired", {{"job", job->name}, {"reason", text}});
  if (!job->waiting.empty()) {
    NoteAgreementLocked(job);
    return;
  }
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
  for (auto& entry : job->waiting) AnswerLocked(&entry.second, status, calls);
  job->waiting.clear();
  job->withdrawn.clear();
  job->manifests.Clear();
  job->state = JobState::kEnded;
  job->ended_at = rooms_.clock->Now();
  job->last_event = std::string(status.message());
}

void Membership::Withdraw(uint64_t ticket) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    WithdrawLocked(ticket, &calls);
  }
  for (const auto& call : calls) call();
}

void Membership::WithdrawLocked(uint64_t ticket, Calls* calls) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return;
  Job& job = jobs_[found->second.first];
  const WorkerIdentity identity = found->second.second;
  tickets_.erase(found);
  const auto waiter = job.waiting.find(identity);
  if (static_cast<int>(job.withdrawn.size()) < options_.max_withdrawn_per_job) {
    job.withdrawn[waiter->second.member.incarnation] = identity;
  }
  job.waiting.erase(waiter);
  job.manifests.Remove(identity);
  LogInfo("join_withdrawn", {{"job", job.name},
                             {"worker", identity.ToString()},
                             {"present", job.waiting.size()}});
  if (!job.waiting.empty()) {
    // It may have been the one that asked for more workers, or differed.
    NoteAgreementLocked(&job);
    DecideRoundLocked(&job, calls);
    return;
  }
  job.state = JobState::kEnded;
  job.ended_at = rooms_.clock->Now();
  job.last_event = "the last worker that waited gave up";
}

}  // namespace coxswain::server
