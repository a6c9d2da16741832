// The part of Membership that answers Join: who may wait for a generation.

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/membership/job_name.h"
#include "server/membership/manifest_check.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"

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

absl::Status IdentityTaken(absl::string_view job,
                           const WorkerIdentity& identity) {
  return absl::AlreadyExistsError(absl::StrCat(
      "another live process is worker ", identity.ToString(), " of job '", job,
      "'; give each launcher on a machine its own --node, or choose another "
      "--job name"));
}

absl::Status JobIsFull(absl::string_view job, size_t members) {
  return absl::FailedPreconditionError(
      absl::StrCat("job '", job, "' is running with all ", members,
                   " ranks taken; choose another --job name or wait"));
}

absl::Status SameIncarnation(const WorkerIdentity& holder) {
  return absl::InvalidArgumentError(
      absl::StrCat("worker ", holder.ToString(),
                   " has the same incarnation; it must be random"));
}

// What is left of a process whose place was given to another one.
absl::Status IdentityLost(absl::string_view job,
                          const WorkerIdentity& identity) {
  return absl::AlreadyExistsError(
      absl::StrCat("a newer process has taken the place of this one as worker ",
                   identity.ToString(), " of job '", job, "': end this one"));
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
  if (request.after_generation < Generation(0) || request.attempt < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "after_generation and attempt must be at least 0, not ",
        request.after_generation.value(), " and ", request.attempt));
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
  RunAll(calls);
  if (!status.ok()) callback(status);
  return ticket;
}

absl::Status Membership::JoinLocked(JoinRequest* request,
                                    JoinCallback* callback, uint64_t* ticket,
                                    Calls* calls) {
  if (shut_down_) return absl::UnavailableError("coordinator shuts down");
  COXSWAIN_ASSIGN_OR_RETURN(Job* const job,
                            FindOrAddJobLocked(request->job, calls));
  COXSWAIN_RETURN_IF_ERROR(CheckDoneLocked(*request, *job));
  COXSWAIN_RETURN_IF_ERROR(CheckAttemptLocked(*request, job, calls));
  COXSWAIN_RETURN_IF_ERROR(CheckRefusalLocked(*request, job));
  if (job->state == JobState::kRunning) {
    auto answer = JoinRunningLocked(*request, job, calls);
    if (answer.has_value()) {
      COXSWAIN_RETURN_IF_ERROR(answer->status());
      return AnswerAgainLocked(
          [callback = *callback, answer = *std::move(answer)] {
            callback(answer);
          },
          job, calls);
    }
    // To make way for it, the generation may have come to its end.
    COXSWAIN_RETURN_IF_ERROR(CheckDoneLocked(*request, *job));
  }
  Waiter waiter;
  COXSWAIN_ASSIGN_OR_RETURN(waiter.arrival,
                            EnterRoundLocked(*request, job, calls));
  waiter.member.identity = request->identity;
  waiter.member.incarnation = request->incarnation;
  waiter.member.rank = -1;
  waiter.member.host = std::move(request->host);
  waiter.member.address = std::move(request->address);
  waiter.member.topology = std::move(request->topology);
  waiter.launcher_id = request->launcher_id;
  waiter.ticket = *ticket = next_handle_++;
  waiter.timeout = std::min(request->timeout, options_.max_join_timeout);
  waiter.after = request->after_generation;
  waiter.callback = *callback;
  tickets_[waiter.ticket] = {job->name, request->identity};
  job->withdrawn.erase(request->incarnation);
  job->room.Add(std::move(waiter), std::move(request->manifest),
                rooms_.clock->Now());
  const bool spare = job->state == JobState::kRunning;
  if (!spare) NoteSizesLocked(job);
  LogInfo(spare ? "waits" : "joined", {{"job", job->name},
                                       {"worker", request->identity.ToString()},
                                       {"present", job->room.size()},
                                       {"world_size", job->world_size}});
  DecideRoundLocked(job, calls);
  return absl::OkStatus();
}

absl::Status Membership::CheckAttemptLocked(const JoinRequest& request,
                                            Job* job, Calls* calls) {
  const bool over = job->run.finished && job->state == JobState::kEnded;
  // Without attempts the name of a finished job is free for another.
  if (over && request.attempt == 0 && job->attempt == 0) {
    return absl::OkStatus();
  }
  if (request.attempt < job->attempt) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", request.identity.ToString(), " belongs to attempt ",
        request.attempt, " of job '", job->name, "', and attempt ",
        job->attempt, " has begun: end this process"));
  }
  if (request.attempt == job->attempt) {
    if (!over) return absl::OkStatus();
    return JobFinishedError(absl::StrCat("attempt ", job->attempt, " of job '",
                                         job->name,
                                         "' has ended in good order"));
  }
  const std::string reason = absl::StrCat("attempt ", request.attempt,
                                          " of job '", job->name, "' begins");
  job->attempt = request.attempt;
  if (job->state == JobState::kRunning) {
    EndGenerationLocked(GenerationEndedError(reason, std::nullopt), nullptr,
                        job, calls);
  }
  if (!job->room.empty()) {
    EndRoundLocked(absl::FailedPreconditionError(reason), job, calls);
  }
  job->room.ExpectNobody();
  job->starts_anew = true;
  SaveLocked(StateBatch(), job, calls);
  return absl::OkStatus();
}

std::optional<absl::StatusOr<JoinResult>> Membership::JoinRunningLocked(
    const JoinRequest& request, Job* job, Calls* calls) {
  const absl::Status same = CheckSameManifestLocked(request.manifest, *job);
  if (!same.ok()) return same;
  MemberTable& members = job->run.members;
  MemberRecord* const self = members.Find(request.incarnation);
  if (self != nullptr && !(self->member.identity == request.identity)) {
    return SameIncarnation(self->member.identity);
  }
  if (self != nullptr) return JoinAgainLocked(request, self, job, calls);
  MemberRecord* const holder = members.Find(request.identity);
  if (holder != nullptr && IsLive(holder->liveness.state)) {
    if (request.after_generation != Generation(0)) {
      return IdentityLost(job->name, request.identity);
    }
    if (!SameLauncher(holder->launcher_id, request.launcher_id)) {
      // One that is away may come back within its grace, and is waited for.
      if (holder->liveness.state == MemberState::kDetached) return std::nullopt;
      return IdentityTaken(job->name, request.identity);
    }
    LoseMemberLocked("a new process took its place", holder, job, calls);
    return std::nullopt;
  }
  const bool elastic = job->min_world_size < job->world_size;
  // It went after the generation began to make way, and is to be replaced.
  const bool replaces =
      holder != nullptr &&
      (holder->rejoins || holder->liveness.state == MemberState::kLost);
  if (!elastic && !replaces) return JobIsFull(job->name, members.size());
  return std::nullopt;
}

std::optional<absl::StatusOr<JoinResult>> Membership::JoinAgainLocked(
    const JoinRequest& request, MemberRecord* record, Job* job, Calls* calls) {
  const bool live = IsLive(record->liveness.state);
  if (request.after_generation < job->run.generation) {
    // Its answer was lost.
    if (live) return ResultLocked(*job, record->member.rank);
    return JobIsFull(job->name, job->run.members.size());
  }
  if (!live && !record->rejoins) {
    return absl::FailedPreconditionError(absl::StrCat(
        record->member.ToString(), " has left job '", job->name, "' for good"));
  }
  // It asks for the next generation, and so has left this one.
  if (live) {
    LeaveNotice notice;
    notice.reason = "it joined the next generation";
    notice.rejoin = true;
    StateBatch batch;
    DepartLocked(notice, record, job, calls);
    PutDeparture(job->run.generation, record->member.rank, DepartureOf(*record),
                 &batch);
    SaveLocked(std::move(batch), job, calls);
  }
  return std::nullopt;
}

absl::StatusOr<uint64_t> Membership::EnterRoundLocked(
    const JoinRequest& request, Job* job, Calls* calls) {
  const Waiter* const old = job->room.Find(request.identity);
  const bool repeats =
      old != nullptr && old->member.incarnation == request.incarnation;
  const bool shared =
      old != nullptr && SameLauncher(old->launcher_id, request.launcher_id);
  if (old != nullptr && !repeats && !shared) {
    if (!Survives(request, *job)) {
      return IdentityTaken(job->name, request.identity);
    }
  } else if (old != nullptr && !repeats &&
             request.after_generation != Generation(0) &&
             (old->after == Generation(0) ||
              request.after_generation < old->after)) {
    return IdentityLost(job->name, request.identity);
  }
  const Waiter* const twin = job->room.Find(request.incarnation);
  if (twin != nullptr && twin != old) {
    return SameIncarnation(twin->member.identity);
  }
  if (old == nullptr) {
    COXSWAIN_RETURN_IF_ERROR(CheckSparesLocked(request, *job));
  }
  const uint64_t arrival = repeats ? old->arrival : 0;
  COXSWAIN_RETURN_IF_ERROR(BindRoundLocked(request, job, calls));
  if (job->room.Find(request.identity) != nullptr) {
    AnswerLocked(request.identity,
                 repeats || shared ? absl::CancelledError(
                                         "a later Join of the same worker took "
                                         "this one's place")
                                   : IdentityTaken(job->name, request.identity),
                 job, calls);
  }
  ReplaceSurvivorLocked(request, job, calls);
  // Whoever waits alone is bound to nobody, and nor is who replaces him.
  if (job->room.empty() && job->state != JobState::kRunning) {
    job->state = JobState::kForming;
    job->withdrawn.clear();
    job->room.Begin(rooms_.clock->Now(), job->survivors_until);
  }
  return arrival;
}

absl::Status Membership::CheckSparesLocked(const JoinRequest& request,
                                           const Job& job) const {
  const MemberTable& members = job.run.members;
  // Who was a member, or takes the place of one, is no spare.
  if (members.Find(request.identity) != nullptr) return absl::OkStatus();
  int limit = options_.max_spares_per_job;
  if (job.state != JobState::kRunning) limit += job.world_size;
  if (job.room.size() < limit) return absl::OkStatus();
  const auto others =
      std::count_if(job.room.waiters().begin(), job.room.waiters().end(),
                    [&members](const WaitingRoom::Waiters::value_type& entry) {
                      return members.Find(entry.first) == nullptr;
                    });
  if (others < limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      others, " workers wait for job '", job.name,
      "' already; max_spares_per_job is ", options_.max_spares_per_job));
}

bool Membership::Survives(const JoinRequest& request, const Job& job) {
  const MemberRecord* const record = job.run.members.Find(request.incarnation);
  return record != nullptr && record->member.identity == request.identity &&
         (IsLive(record->liveness.state) || record->rejoins) &&
         request.after_generation == job.run.generation;
}

void Membership::ReplaceSurvivorLocked(const JoinRequest& request, Job* job,
                                       Calls* calls) {
  MemberRecord* const record = job->run.members.Find(request.identity);
  if (record == nullptr || job->run.finished || job->starts_anew ||
      record->member.incarnation == request.incarnation ||
      !SameLauncher(record->launcher_id, request.launcher_id) ||
      !(IsLive(record->liveness.state) || record->rejoins)) {
    return;
  }
  LoseSurvivorLocked("a new process took its place", record, job, calls);
}

void Membership::RefuseDuplicateLocked(const Member& member, Job* job,
                                       Calls* calls) {
  const Waiter* const waiter = job->room.Find(member.identity);
  if (waiter == nullptr || waiter->member.incarnation == member.incarnation) {
    return;
  }
  AnswerLocked(member.identity, IdentityTaken(job->name, member.identity), job,
               calls);
}

absl::Status Membership::BindRoundLocked(const JoinRequest& request, Job* job,
                                         Calls* calls) {
  if (job->state == JobState::kRunning || job->run.manifest == nullptr) {
    return absl::OkStatus();
  }
  const bool survives = request.after_generation == job->run.generation &&
                        job->run.members.Find(request.incarnation) != nullptr;
  if (!survives && !(job->bound && !job->room.empty())) {
    job->bound = false;
    return absl::OkStatus();
  }
  COXSWAIN_RETURN_IF_ERROR(CheckSameManifestLocked(request.manifest, *job));
  if (std::exchange(job->bound, true)) return absl::OkStatus();
  // Who came before the first survivor, and is none of them.
  for (const WorkerIdentity& identity : job->room.Identities()) {
    const Manifest* const brought = job->room.manifests().Of(identity);
    if (brought != nullptr && SameManifest(*brought, *job->run.manifest)) {
      if (job->room.manifests().agreed()) break;
      continue;
    }
    AnswerLocked(identity,
                 brought == nullptr
                     ? ManifestMismatchError(
                           absl::StrCat("job '", job->name,
                                        "' goes on with another manifest"),
                           {"a setting or a parameter"})
                     : CheckSameManifestLocked(*brought, *job),
                 job, calls);
  }
  return absl::OkStatus();
}

absl::StatusOr<Membership::Job*> Membership::FindOrAddJobLocked(
    const std::string& name, Calls* calls) {
  const auto found = jobs_.find(name);
  if (found != jobs_.end()) return &found->second;
  if (jobs_.size() >= static_cast<size_t>(options_.max_jobs)) {
    auto oldest = jobs_.end();
    for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
      if (it->second.state != JobState::kEnded) continue;
      if (oldest == jobs_.end() ||
          std::pair(it->second.ended_at, it->second.run.generation) <
              std::pair(oldest->second.ended_at,
                        oldest->second.run.generation)) {
        oldest = it;
      }
    }
    if (oldest == jobs_.end()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the coordinator has ", jobs_.size(),
                       " unfinished jobs; max_jobs is ", options_.max_jobs));
    }
    ForgetLocked(oldest->second, calls);
    jobs_.erase(oldest);
  }
  Job& job = jobs_[name];
  job.name = name;
  job.ended_at = rooms_.clock->Now();
  return &job;
}

void Membership::ForgetLocked(const Job& job, Calls* calls) {
  if (job.run.generation == Generation(0)) return;
  StateBatch batch;
  DeleteJob(KeptOf(job, job.run, false), &batch);
  WriteLocked(
      std::move(batch),
      [name = job.name](const absl::Status& status) {
        if (status.ok()) return;
        LogWarning("job_not_forgotten",
                   {{"job", name}, {"error", status.message()}});
      },
      calls);
}

void Membership::Withdraw(uint64_t ticket) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    WithdrawLocked(ticket, &calls);
  }
  RunAll(calls);
}

void Membership::WithdrawLocked(uint64_t ticket, Calls* calls) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return;
  Job& job = jobs_[found->second.first];
  const WorkerIdentity identity = found->second.second;
  tickets_.erase(found);
  const Waiter waiter = job.room.Take(identity, rooms_.clock->Now());
  LogInfo("join_withdrawn", {{"job", job.name},
                             {"worker", identity.ToString()},
                             {"present", job.room.size()}});
  if (job.state != JobState::kForming) return;
  if (static_cast<int>(job.withdrawn.size()) < options_.max_withdrawn_per_job) {
    job.withdrawn[waiter.member.incarnation] = identity;
  }
  if (!job.room.empty()) {
    // It may have been the one that asked for more workers, or differed.
    NoteSizesLocked(&job);
    DecideRoundLocked(&job, calls);
    return;
  }
  job.state = JobState::kEnded;
  job.ended_at = rooms_.clock->Now();
  job.last_event = "the last worker that waited gave up";
}

void Membership::NoteSizesLocked(Job* job) {
  if (job->room.empty()) return;
  job->world_size = job->room.max();
  job->min_world_size = job->room.min();
}

}  // namespace coxswain::server
