// The part of JobMembership that keeps those who wait for a generation.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/membership/job_membership.h"
#include "server/membership/job_rules.h"
#include "server/membership/manifest_check.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {

absl::Status JobMembership::CheckWaiters(const JoinRequest& request) const {
  const Waiter* const old = job_.waiting.Find(request.identity);
  const bool repeats =
      old != nullptr && old->member.incarnation == request.incarnation;
  const bool shared =
      old != nullptr && SameLauncher(old->launcher_id, request.launcher_id);
  if (old != nullptr && !repeats && !shared) {
    if (!Survives(request, job_)) {
      return IdentityTakenError(job_.name, request.identity);
    }
  } else if (old != nullptr && !repeats &&
             request.after_generation != Generation(0) &&
             (old->after == Generation(0) ||
              request.after_generation < old->after)) {
    return IdentityLostError(job_.name, request.identity);
  }
  const Waiter* const twin = job_.waiting.Find(request.incarnation);
  if (twin != nullptr && twin != old) {
    return SameIncarnationError(twin->member.identity);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> JobMembership::EnterRound(const JoinRequest& request,
                                                   absl::Time now,
                                                   JobEffects* effects) {
  COXSWAIN_RETURN_IF_ERROR(CheckWaiters(request));
  const Waiter* const old = job_.waiting.Find(request.identity);
  const bool repeats =
      old != nullptr && old->member.incarnation == request.incarnation;
  const bool shared =
      old != nullptr && SameLauncher(old->launcher_id, request.launcher_id);
  if (old == nullptr) {
    COXSWAIN_RETURN_IF_ERROR(CheckSpares(request));
  }
  const uint64_t arrival = repeats ? old->arrival : 0;
  COXSWAIN_RETURN_IF_ERROR(BindRound(request, now, effects));
  if (job_.waiting.Find(request.identity) != nullptr) {
    Answer(request.identity,
           repeats || shared
               ? absl::CancelledError("a later Join of the same worker took "
                                      "this one's place")
               : IdentityTakenError(job_.name, request.identity),
           now, effects);
  }
  ReplaceSurvivor(request, effects);
  // A worker that waits alone is bound to no other, nor is its replacement.
  if (job_.waiting.empty() && job_.state != JobState::kRunning) {
    job_.state = JobState::kForming;
    job_.withdrawn.clear();
    job_.waiting.Begin(now, job_.survivors_until);
  }
  return arrival;
}

absl::Status JobMembership::CheckSpares(const JoinRequest& request) const {
  const MemberTable& members = job_.run.members;
  // Who was a member, or takes the place of one, is no spare.
  if (members.Find(request.identity) != nullptr) return absl::OkStatus();
  int limit = options().max_spares_per_job;
  if (job_.state != JobState::kRunning) limit += job_.world_size;
  if (job_.waiting.size() < limit) return absl::OkStatus();
  const auto others = std::count_if(
      job_.waiting.waiters().begin(), job_.waiting.waiters().end(),
      [&members](const WaitList::Waiters::value_type& entry) {
        return members.Find(entry.first) == nullptr;
      });
  if (others < limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      others, " workers wait for job '", job_.name,
      "' already; max_spares_per_job is ", options().max_spares_per_job));
}

void JobMembership::ReplaceSurvivor(const JoinRequest& request,
                                    JobEffects* effects) {
  MemberRecord* const record = job_.run.members.Find(request.identity);
  if (record == nullptr || job_.run.finished || job_.starts_anew ||
      record->member.incarnation == request.incarnation ||
      !SameLauncher(record->launcher_id, request.launcher_id) ||
      !(IsLive(record->liveness.state) || record->rejoins)) {
    return;
  }
  LoseSurvivor("a new process took its place", record, effects);
}

void JobMembership::RefuseDuplicate(const Member& member, absl::Time now,
                                    JobEffects* effects) {
  const Waiter* const waiter = job_.waiting.Find(member.identity);
  if (waiter == nullptr || waiter->member.incarnation == member.incarnation) {
    return;
  }
  Answer(member.identity, IdentityTakenError(job_.name, member.identity), now,
         effects);
}

absl::Status JobMembership::BindRound(const JoinRequest& request,
                                      absl::Time now, JobEffects* effects) {
  if (job_.state == JobState::kRunning || job_.run.manifest == nullptr) {
    return absl::OkStatus();
  }
  const bool survives = !job_.starts_anew &&
                        request.after_generation == job_.run.generation &&
                        job_.run.members.Find(request.incarnation) != nullptr;
  if (!survives && !(job_.bound && !job_.waiting.empty())) {
    job_.bound = false;
    return absl::OkStatus();
  }
  COXSWAIN_RETURN_IF_ERROR(CheckSameManifest(request.manifest));
  if (std::exchange(job_.bound, true)) return absl::OkStatus();
  // Who came before the first survivor, and is none of them.
  for (const WorkerIdentity& identity : job_.waiting.Identities()) {
    const Manifest* const brought = job_.waiting.manifests().Of(identity);
    if (brought != nullptr && SameManifest(*brought, *job_.run.manifest)) {
      if (job_.waiting.manifests().agreed()) break;
      continue;
    }
    Answer(identity,
           brought == nullptr
               ? ManifestMismatchError(
                     absl::StrCat("job '", job_.name,
                                  "' goes on with another manifest"),
                     {"a setting or a parameter"})
               : CheckSameManifest(*brought),
           now, effects);
  }
  return absl::OkStatus();
}

void JobMembership::TakeNow(const job_input::Withdraw& withdraw, absl::Time now,
                            JobEffects* effects) {
  const WorkerIdentity& identity = withdraw.identity;
  const Waiter* const found = job_.waiting.Find(identity);
  // It may have been answered meanwhile.
  if (found == nullptr || found->join_id != withdraw.join_id) return;
  const Waiter waiter = job_.waiting.Take(identity, now);
  NoteSign(waiter.member.incarnation, now);
  LogInfo("join_withdrawn", {{"job", job_.name},
                             {"worker", identity.ToString()},
                             {"present", job_.waiting.size()}});
  if (job_.state != JobState::kForming) return;
  if (static_cast<int>(job_.withdrawn.size()) <
      options().max_withdrawn_per_job) {
    job_.withdrawn[waiter.member.incarnation] = identity;
  }
  if (!job_.waiting.empty()) {
    // It may have been the one that asked for more workers, or differed.
    NoteSizes(&job_);
    LookAtRound(now, effects);
    return;
  }
  job_.state = JobState::kEnded;
  job_.ended_at = now;
  NoteLastEvent("the last waiting worker has withdrawn", now);
}

}  // namespace coxswain::server
