// The part of Membership that answers Join: who may wait for a generation.

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/membership/job_rules.h"
#include "server/membership/join_check.h"
#include "server/membership/manifest_agreement.h"
#include "server/membership/manifest_check.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {
namespace {

// Joins that wait for the commit of a generation: each brings a manifest, which
// may have megabytes, and a round keeps no more of them.
constexpr size_t kMaxDeferredJoins = ManifestAgreement::kMaxKept;

// Returns the call that refuses the request.
std::function<void()> RefusalOf(const JoinRequest& request,
                                JoinCallback callback, absl::Status status) {
  return [on_refused = request.on_refused, callback = std::move(callback),
          status = std::move(status)] {
    if (on_refused) on_refused(status);
    callback(status);
  };
}

absl::Status JobIsFull(absl::string_view job, size_t members) {
  return absl::FailedPreconditionError(
      absl::StrCat("job '", job, "' is running with all ", members,
                   " ranks taken; choose another --job name or wait"));
}

}  // namespace

uint64_t Membership::Join(JoinRequest request, JoinCallback callback) {
  const absl::Status valid = CheckJoin(request, options_);
  if (!valid.ok()) {
    RefusalOf(request, std::move(callback), valid)();
    return 0;
  }
  NormaliseManifest(&request.manifest);
  uint64_t ticket = 0;
  Calls calls;
  {
    MutexLock lock(&mutex_);
    ticket = next_handle_++;
    const auto found = jobs_.find(request.job);
    if (found != jobs_.end() && found->second.commit != nullptr) {
      DeferJoinLocked(std::move(request), std::move(callback), ticket,
                      &found->second, &calls);
    } else {
      TakeJoinLocked(std::move(request), std::move(callback), ticket, &calls);
    }
  }
  RunAll(calls);
  return ticket;
}

void Membership::TakeJoinLocked(JoinRequest request, JoinCallback callback,
                                uint64_t ticket, Calls* calls) {
  const absl::Status status = JoinLocked(&request, callback, ticket, calls);
  if (status.ok()) return;
  calls->push_back(RefusalOf(request, std::move(callback), status));
}

void Membership::DeferJoinLocked(JoinRequest request, JoinCallback callback,
                                 uint64_t ticket, Job* job, Calls* calls) {
  absl::Status turn = CheckTurnLocked(*job);
  if (turn.ok() && job->deferred_joins >= kMaxDeferredJoins) {
    turn = absl::UnavailableError(absl::StrCat(
        "a generation of job '", job->name, "' is being committed, and ",
        job->deferred_joins, " more workers wait for that to join: ask again"));
  }
  if (!turn.ok()) {
    calls->push_back(RefusalOf(request, std::move(callback), turn));
    return;
  }
  ++job->deferred_joins;
  tickets_[ticket] = {job->name, request.identity};
  job->deferred.push_back(
      [this, job, request = std::move(request), callback = std::move(callback),
       ticket](Calls* after) ABSL_NO_THREAD_SAFETY_ANALYSIS mutable {
        --job->deferred_joins;
        tickets_.erase(ticket);
        TakeJoinLocked(std::move(request), std::move(callback), ticket, after);
      });
}

absl::Status Membership::JoinLocked(JoinRequest* request,
                                    const JoinCallback& callback,
                                    uint64_t ticket, Calls* calls) {
  if (shut_down_) return absl::UnavailableError("coordinator shuts down");
  COXSWAIN_ASSIGN_OR_RETURN(Job* const job,
                            FindOrAddJobLocked(request->job, calls));
  COXSWAIN_RETURN_IF_ERROR(CheckDone(*request, *job));
  COXSWAIN_RETURN_IF_ERROR(CheckRefusalLocked(*request, job));
  // The first that may do something.
  COXSWAIN_RETURN_IF_ERROR(CheckAttemptLocked(*request, job, calls));
  if (job->state == JobState::kRunning) {
    auto answer = JoinRunningLocked(*request, job, calls);
    if (answer.has_value()) {
      COXSWAIN_RETURN_IF_ERROR(answer->status());
      return AnswerAgainLocked(
          [callback, answer = *std::move(answer)] { callback(answer); }, job,
          calls);
    }
    // To make way for it, the generation may have come to its end.
    COXSWAIN_RETURN_IF_ERROR(CheckDone(*request, *job));
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
  waiter.ticket = ticket;
  waiter.timeout = std::min(request->timeout, options_.max_join_timeout);
  waiter.after = request->after_generation;
  waiter.callback = callback;
  tickets_[waiter.ticket] = {job->name, request->identity};
  job->withdrawn.erase(request->incarnation);
  job->room.Add(std::move(waiter), std::move(request->manifest),
                rooms_.clock->Now());
  const bool spare = job->state == JobState::kRunning;
  if (!spare) NoteSizes(job);
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
    return SameIncarnationError(self->member.identity);
  }
  if (self != nullptr) return JoinAgainLocked(request, self, job, calls);
  MemberRecord* const holder = members.Find(request.identity);
  if (holder != nullptr && IsLive(holder->liveness.state)) {
    if (request.after_generation != Generation(0)) {
      return IdentityLostError(job->name, request.identity);
    }
    if (!SameLauncher(holder->launcher_id, request.launcher_id)) {
      // One that is away may come back within its grace, and is waited for.
      if (holder->liveness.state == MemberState::kDetached) return std::nullopt;
      return IdentityTakenError(job->name, request.identity);
    }
    const absl::Status may_wait = CheckWaitersLocked(request, *job);
    if (!may_wait.ok()) return may_wait;
    LoseMemberLocked("a new process took its place", holder, job, calls);
    return std::nullopt;
  }
  const bool elastic = job->min_world_size < job->world_size;
  // It went after the generation began to make way, and is to be replaced; or
  // it left for good, failed then, and was started again: whether it is needed
  // turns out when the generation ends.
  const bool replaces =
      holder != nullptr &&
      (holder->rejoins || holder->liveness.state == MemberState::kLost ||
       SameLauncher(holder->launcher_id, request.launcher_id));
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
    const absl::Status may_wait = CheckWaitersLocked(request, *job);
    if (!may_wait.ok()) return may_wait;
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

}  // namespace coxswain::server
