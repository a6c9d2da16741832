// The part of JobMembership that answers a Join: who may wait for a generation.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/membership/job_membership.h"
#include "server/membership/job_rules.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {
namespace {

absl::Status JobIsFull(absl::string_view job, size_t members) {
  return absl::FailedPreconditionError(
      absl::StrCat("job '", job, "' is running with all ", members,
                   " ranks taken; choose another --job name or wait"));
}

}  // namespace

void JobMembership::TakeNow(job_input::Join join, absl::Time now,
                            JobEffects* effects) {
  // Whatever the answer.
  NoteSign(join.request.incarnation, now);
  absl::Status status = DecideJoin(&join, now, effects);
  if (!status.ok()) Refuse(std::move(join), std::move(status), effects);
}

void JobMembership::Refuse(job_input::Join join, absl::Status status,
                           JobEffects* effects) {
  effects->push_back(job_effect::Answer{join.join_id, std::move(join.callback),
                                        std::move(status),
                                        std::move(join.request.on_refused)});
}

absl::Status JobMembership::DecideJoin(job_input::Join* join, absl::Time now,
                                       JobEffects* effects) {
  JoinRequest& request = join->request;
  COXSWAIN_RETURN_IF_ERROR(shut_down_);
  COXSWAIN_RETURN_IF_ERROR(CheckDone(request, job_));
  COXSWAIN_RETURN_IF_ERROR(CheckRefusal(request, now));
  // The first that may do something.
  COXSWAIN_RETURN_IF_ERROR(CheckAttempt(request, now, effects));
  if (job_.state == JobState::kRunning) {
    auto answer = JoinRunning(request, now, effects);
    if (answer.has_value()) {
      COXSWAIN_RETURN_IF_ERROR(answer->status());
      return AnswerAgain(
          {join->join_id, join->callback, *std::move(answer), {}}, effects);
    }
    // To make way for it, the generation may have come to its end.
    COXSWAIN_RETURN_IF_ERROR(CheckDone(request, job_));
  }
  Waiter waiter;
  COXSWAIN_ASSIGN_OR_RETURN(waiter.arrival, EnterRound(request, now, effects));
  waiter.member.identity = request.identity;
  waiter.member.incarnation = request.incarnation;
  waiter.member.rank = -1;
  waiter.member.host = std::move(request.host);
  waiter.member.address = std::move(request.address);
  waiter.member.topology = std::move(request.topology);
  waiter.launcher_id = request.launcher_id;
  waiter.join_id = join->join_id;
  waiter.timeout = std::min(request.timeout, options().max_join_timeout);
  waiter.after = request.after_generation;
  waiter.catch_up = {std::move(request.catch_up_address),
                     request.catch_up_secret, request.incarnation.value()};
  waiter.callback = std::move(join->callback);
  job_.withdrawn.erase(request.incarnation);
  job_.waiting.Add(std::move(waiter), std::move(request.manifest), now);
  const bool spare = job_.state == JobState::kRunning;
  if (!spare) NoteSizes(&job_);
  LogInfo(spare ? "waits" : "joined", {{"job", job_.name},
                                       {"worker", request.identity.ToString()},
                                       {"present", job_.waiting.size()},
                                       {"world_size", job_.world_size}});
  LookAtRound(now, effects);
  return absl::OkStatus();
}

absl::Status JobMembership::CheckAttempt(const JoinRequest& request,
                                         absl::Time now, JobEffects* effects) {
  const bool over = job_.run.finished && job_.state == JobState::kEnded;
  // Without attempts the name of a finished job is free for another.
  if (over && request.attempt == 0 && job_.attempt == 0) {
    return absl::OkStatus();
  }
  if (request.attempt < job_.attempt) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", request.identity.ToString(), " belongs to attempt ",
        request.attempt, " of job '", job_.name, "', and attempt ",
        job_.attempt, " has begun: end this process"));
  }
  if (request.attempt == job_.attempt) {
    if (!over) return absl::OkStatus();
    return JobFinishedError(absl::StrCat("attempt ", job_.attempt, " of job '",
                                         job_.name, "' has ended cleanly"));
  }
  const std::string reason = absl::StrCat("attempt ", request.attempt,
                                          " of job '", job_.name, "' begins");
  job_.attempt = request.attempt;
  if (job_.state == JobState::kRunning) {
    EndGeneration(GenerationEndedError(reason, std::nullopt), nullptr, now,
                  effects);
  }
  if (!job_.waiting.empty()) {
    EndRound(absl::FailedPreconditionError(reason), now, effects);
  }
  job_.waiting.ExpectNobody();
  job_.starts_anew = true;
  Save(StateBatch(), effects);
  return absl::OkStatus();
}

std::optional<absl::StatusOr<JoinResult>> JobMembership::JoinRunning(
    const JoinRequest& request, absl::Time now, JobEffects* effects) {
  const absl::Status same = CheckSameManifest(request.manifest);
  if (!same.ok()) return same;
  MemberTable& members = job_.run.members;
  MemberRecord* const self = members.Find(request.incarnation);
  if (self != nullptr && !(self->member.identity == request.identity)) {
    return SameIncarnationError(self->member.identity);
  }
  if (self != nullptr) return JoinAgain(request, self, now, effects);
  MemberRecord* const holder = members.Find(request.identity);
  if (holder != nullptr && IsLive(holder->liveness.state)) {
    if (request.after_generation != Generation(0)) {
      return IdentityLostError(job_.name, request.identity);
    }
    if (!SameLauncher(holder->launcher_id, request.launcher_id)) {
      // One that is away may come back within its grace, and is waited for.
      if (holder->liveness.state == MemberState::kDetached) return std::nullopt;
      return IdentityTakenError(job_.name, request.identity);
    }
    const absl::Status may_wait = CheckWaiters(request);
    if (!may_wait.ok()) return may_wait;
    LoseMember("a new process took its place", holder, now, effects);
    return std::nullopt;
  }
  const bool elastic = job_.min_world_size < job_.world_size;
  // It went after the generation began to make way, and is to be replaced; or
  // it left for good, failed then, and was started again: whether it is needed
  // turns out when the generation ends.
  const bool replaces =
      holder != nullptr &&
      (holder->rejoins || holder->liveness.state == MemberState::kLost ||
       SameLauncher(holder->launcher_id, request.launcher_id));
  if (!elastic && !replaces) return JobIsFull(job_.name, members.size());
  return std::nullopt;
}

std::optional<absl::StatusOr<JoinResult>> JobMembership::JoinAgain(
    const JoinRequest& request, MemberRecord* record, absl::Time now,
    JobEffects* effects) {
  const bool live = IsLive(record->liveness.state);
  if (request.after_generation < job_.run.generation) {
    // Its answer was lost.
    if (live) return ResultFor(record->member.rank);
    return JobIsFull(job_.name, job_.run.members.size());
  }
  if (!live && !record->rejoins) {
    return absl::FailedPreconditionError(absl::StrCat(
        record->member.ToString(), " has left job '", job_.name, "' for good"));
  }
  // It asks for the next generation, and so has left this one.
  if (live) {
    const absl::Status may_wait = CheckWaiters(request);
    if (!may_wait.ok()) return may_wait;
    LeaveNotice notice;
    notice.reason = "it joined the next generation";
    notice.rejoin = true;
    StateBatch batch;
    Depart(notice, record, now, effects);
    PutDeparture(job_.run.generation, record->member.rank, DepartureOf(*record),
                 &batch);
    Save(std::move(batch), effects);
  }
  return std::nullopt;
}

}  // namespace coxswain::server
