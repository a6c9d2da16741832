// The part of Membership that keeps those who wait for a generation.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/membership/job_rules.h"
#include "server/membership/manifest_check.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {

absl::Status Membership::CheckWaitersLocked(const JoinRequest& request,
                                            const Job& job) const {
  const Waiter* const old = job.room.Find(request.identity);
  const bool repeats =
      old != nullptr && old->member.incarnation == request.incarnation;
  const bool shared =
      old != nullptr && SameLauncher(old->launcher_id, request.launcher_id);
  if (old != nullptr && !repeats && !shared) {
    if (!Survives(request, job)) {
      return IdentityTakenError(job.name, request.identity);
    }
  } else if (old != nullptr && !repeats &&
             request.after_generation != Generation(0) &&
             (old->after == Generation(0) ||
              request.after_generation < old->after)) {
    return IdentityLostError(job.name, request.identity);
  }
  const Waiter* const twin = job.room.Find(request.incarnation);
  if (twin != nullptr && twin != old) {
    return SameIncarnationError(twin->member.identity);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Membership::EnterRoundLocked(
    const JoinRequest& request, Job* job, Calls* calls) {
  COXSWAIN_RETURN_IF_ERROR(CheckWaitersLocked(request, *job));
  const Waiter* const old = job->room.Find(request.identity);
  const bool repeats =
      old != nullptr && old->member.incarnation == request.incarnation;
  const bool shared =
      old != nullptr && SameLauncher(old->launcher_id, request.launcher_id);
  if (old == nullptr) {
    COXSWAIN_RETURN_IF_ERROR(CheckSparesLocked(request, *job));
  }
  const uint64_t arrival = repeats ? old->arrival : 0;
  COXSWAIN_RETURN_IF_ERROR(BindRoundLocked(request, job, calls));
  if (job->room.Find(request.identity) != nullptr) {
    AnswerLocked(
        request.identity,
        repeats || shared
            ? absl::CancelledError("a later Join of the same worker took "
                                   "this one's place")
            : IdentityTakenError(job->name, request.identity),
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
  AnswerLocked(member.identity, IdentityTakenError(job->name, member.identity),
               job, calls);
}

absl::Status Membership::BindRoundLocked(const JoinRequest& request, Job* job,
                                         Calls* calls) {
  if (job->state == JobState::kRunning || job->run.manifest == nullptr) {
    return absl::OkStatus();
  }
  const bool survives = !job->starts_anew &&
                        request.after_generation == job->run.generation &&
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

void Membership::Withdraw(uint64_t ticket) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    const auto found = tickets_.find(ticket);
    if (found == tickets_.end()) return;
    ChangeLocked(
        [this, ticket](Calls* after)
            ABSL_NO_THREAD_SAFETY_ANALYSIS { WithdrawLocked(ticket, after); },
        &jobs_[found->second.first], &calls);
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
    NoteSizes(&job);
    DecideRoundLocked(&job, calls);
    return;
  }
  job.state = JobState::kEnded;
  job.ended_at = rooms_.clock->Now();
  job.last_event = "the last worker that waited gave up";
}

}  // namespace coxswain::server
