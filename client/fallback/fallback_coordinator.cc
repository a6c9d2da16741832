#include "client/fallback/fallback_coordinator.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "schedule/schedule_wire.h"
#include "schedule/step_agreement.h"

namespace coxswain {
namespace {

schedule::FallbackSchedule::Options ScheduleOptions(
    const FallbackCoordinator::Options& options) {
  schedule::FallbackSchedule::Options result;
  result.world_size = options.world_size;
  result.mesh = options.mesh;
  result.plan = options.plan;
  return result;
}

absl::Status Closed() {
  return absl::FailedPreconditionError("this fallback coordinator is closed");
}

}  // namespace

FallbackCoordinator::FallbackCoordinator(Options options)
    : options_(std::move(options)), schedule_(ScheduleOptions(options_)) {}

absl::Status FallbackCoordinator::CheckHello(const v1::Hello& hello) const {
  if (hello.rank() < 0 || hello.rank() >= options_.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("hello.rank must be 0 to ",
                                                   options_.world_size - 1,
                                                   ", not ", hello.rank()));
  }
  const v1::Fence& fence = hello.fence();
  if (fence.cluster_id() == options_.fence.cluster_id() &&
      fence.job() == options_.fence.job() &&
      fence.generation() == options_.fence.generation()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("this is the fallback coordinator of generation ",
                   options_.fence.generation(), " of job '",
                   options_.fence.job(), "', and not of generation ",
                   fence.generation(), " of the job that attaches"));
}

absl::StatusOr<FallbackCoordinator::AttachmentId> FallbackCoordinator::Attach(
    const v1::Hello& hello, Callbacks callbacks) {
  COXSWAIN_RETURN_IF_ERROR(CheckHello(hello));
  MutexLock lock(&mutex_);
  if (closed_) return Closed();
  const schedule::FallbackSchedule::Attached state =
      schedule_.OnAttached(hello.rank());
  std::vector<int> ended = state.detached;
  if (by_rank_.count(hello.rank()) > 0) ended.push_back(hello.rank());
  for (const int rank : ended) {
    const auto found = by_rank_.find(rank);
    if (found == by_rank_.end()) continue;
    const auto attachment = attachments_.find(found->second);
    attachment->second.callbacks.on_end(absl::UnavailableError(absl::StrCat(
        "fallback epoch ", state.epoch.fallback, " has begun: attach again")));
    attachments_.erase(attachment);
    by_rank_.erase(found);
  }
  const AttachmentId id = next_++;
  v1::AttachEvent attached;
  attached.mutable_attached()->set_fallback_epoch(state.epoch.fallback);
  callbacks.on_event(attached);
  attachments_[id] = {hello.rank(), std::move(callbacks)};
  by_rank_[hello.rank()] = id;
  return id;
}

absl::Status FallbackCoordinator::Handle(AttachmentId id,
                                         v1::AttachRequest request) {
  MutexLock lock(&mutex_);
  const auto attachment = attachments_.find(id);
  if (attachment == attachments_.end()) return absl::OkStatus();
  const int rank = attachment->second.rank;
  const absl::Time now = options_.clock->Now();
  switch (request.kind_case()) {
    case v1::AttachRequest::kPosition: {
      COXSWAIN_ASSIGN_OR_RETURN(
          const schedule::Decision last,
          schedule::TakePosition(request.mutable_position()));
      SendLocked(schedule_.OnPosition(rank, request.position().last().stream(),
                                      last, now));
      break;
    }
    case v1::AttachRequest::kTicket: {
      COXSWAIN_ASSIGN_OR_RETURN(const schedule::Ticket ticket,
                                schedule::TakeTicket(request.mutable_ticket()));
      SendLocked(
          schedule_.OnTicket(rank, request.ticket().stream(), ticket, now));
      break;
    }
    case v1::AttachRequest::kVote: {
      COXSWAIN_ASSIGN_OR_RETURN(const schedule::Vote vote,
                                schedule::TakeVote(request.mutable_vote()));
      SendLocked(schedule_.OnVote(rank, request.vote().stream(), vote, now));
      break;
    }
    default:
      return absl::InvalidArgumentError(
          "a fallback coordinator takes one hello, then positions, tickets "
          "and votes");
  }
  LogSuspensionLocked();
  return absl::OkStatus();
}

void FallbackCoordinator::SendLocked(
    const schedule::FallbackSchedule::Messages& messages) {
  for (const schedule::Message& message : messages) {
    const v1::AttachEvent event = schedule::ToWire(message);
    const int to = message.rank;
    for (const auto& [id, attachment] : attachments_) {
      if (to == schedule::Message::kAllRanks || to == attachment.rank) {
        attachment.callbacks.on_event(event);
      }
    }
  }
}

void FallbackCoordinator::LogSuspensionLocked() {
  if (logged_suspension_ == schedule_.suspended()) return;
  logged_suspension_ = schedule_.suspended();
  if (logged_suspension_.empty()) return;
  LogWarning("fallback_suspended",
             {{"job", options_.fence.job()},
              {"generation", options_.fence.generation()},
              {"fallback_epoch", schedule_.epoch().fallback},
              {"reason", logged_suspension_},
              {"next", "the coordinator decides"}});
}

void FallbackCoordinator::Detach(AttachmentId id) {
  MutexLock lock(&mutex_);
  const auto attachment = attachments_.find(id);
  if (attachment == attachments_.end()) return;
  schedule_.OnDetached(attachment->second.rank);
  by_rank_.erase(attachment->second.rank);
  attachments_.erase(attachment);
}

void FallbackCoordinator::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  for (const auto& [id, attachment] : attachments_) {
    schedule_.OnDetached(attachment.rank);
    attachment.callbacks.on_end(Closed());
  }
  attachments_.clear();
  by_rank_.clear();
}

}  // namespace coxswain
