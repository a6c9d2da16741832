#include "client/stand_in/stand_in_desk.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "schedule/schedule_wire.h"
#include "schedule/step_agreement.h"

namespace coxswain {
namespace {

schedule::FallbackSchedule::Options ScheduleOptions(
    const StandInDesk::Options& options) {
  schedule::FallbackSchedule::Options result;
  result.world_size = options.world_size;
  result.plan = options.plan;
  return result;
}

absl::Status Closed() {
  return absl::FailedPreconditionError("this stand-in is over");
}

}  // namespace

StandInDesk::StandInDesk(Options options)
    : options_(std::move(options)), schedule_(ScheduleOptions(options_)) {}

absl::Status StandInDesk::CheckHello(const v1::Hello& hello) const {
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
  return absl::FailedPreconditionError(absl::StrCat(
      "this is the stand-in of generation ", options_.fence.generation(),
      " of job '", options_.fence.job(), "', and not of generation ",
      fence.generation(), " of the job that asks"));
}

absl::StatusOr<StandInDesk::Visit> StandInDesk::Arrive(const v1::Hello& hello,
                                                       Ear ear) {
  COXSWAIN_RETURN_IF_ERROR(CheckHello(hello));
  MutexLock lock(&mutex_);
  if (closed_) return Closed();
  const schedule::FallbackSchedule::Arrival arrival =
      schedule_.OnArrival(hello.rank());
  std::vector<int> away = arrival.sent_away;
  if (visit_of_.count(hello.rank()) > 0) away.push_back(hello.rank());
  for (const int rank : away) {
    const auto found = visit_of_.find(rank);
    if (found == visit_of_.end()) continue;
    const auto visitor = visitors_.find(found->second);
    visitor->second.ear.on_end(absl::UnavailableError(absl::StrCat(
        "spell ", arrival.spell, " of the stand-in has begun: come again")));
    visitors_.erase(visitor);
    visit_of_.erase(found);
  }
  const Visit visit = next_++;
  v1::AttachEvent attached;
  attached.mutable_attached()->set_spell(arrival.spell);
  ear.on_event(attached);
  visitors_[visit] = {hello.rank(), std::move(ear)};
  visit_of_[hello.rank()] = visit;
  return visit;
}

absl::Status StandInDesk::Hear(Visit visit, v1::AttachRequest request) {
  MutexLock lock(&mutex_);
  const auto visitor = visitors_.find(visit);
  if (visitor == visitors_.end()) return absl::OkStatus();
  const int rank = visitor->second.rank;
  const absl::Time now = options_.clock->Now();
  switch (request.kind_case()) {
    case v1::AttachRequest::kPosition: {
      COXSWAIN_ASSIGN_OR_RETURN(
          const schedule::Decision last,
          schedule::TakePosition(request.mutable_position()));
      SayLocked(schedule_.OnPosition(rank, request.position().last().stream(),
                                     last, now));
      break;
    }
    case v1::AttachRequest::kTicket: {
      COXSWAIN_ASSIGN_OR_RETURN(const schedule::Ticket ticket,
                                schedule::TakeTicket(request.mutable_ticket()));
      SayLocked(
          schedule_.OnTicket(rank, request.ticket().stream(), ticket, now));
      break;
    }
    case v1::AttachRequest::kVote: {
      COXSWAIN_ASSIGN_OR_RETURN(const schedule::Vote vote,
                                schedule::TakeVote(request.mutable_vote()));
      SayLocked(schedule_.OnVote(rank, request.vote().stream(), vote, now));
      break;
    }
    default:
      return absl::InvalidArgumentError(
          "a stand-in is told one hello, then positions, tickets and votes");
  }
  NoteSilenceLocked();
  return absl::OkStatus();
}

void StandInDesk::SayLocked(
    const schedule::FallbackSchedule::Messages& messages) {
  for (const schedule::Message& message : messages) {
    const v1::AttachEvent event = schedule::ToWire(message);
    const int to = message.rank;
    for (const auto& [visit, visitor] : visitors_) {
      const bool meant =
          to == schedule::Message::kAllRanks || to == visitor.rank;
      if (meant) visitor.ear.on_event(event);
    }
  }
}

void StandInDesk::NoteSilenceLocked() {
  if (silence_ == schedule_.silent()) return;
  silence_ = schedule_.silent();
  if (silence_.empty()) return;
  LogWarning("stand_in_silent", {{"job", options_.fence.job()},
                                 {"generation", options_.fence.generation()},
                                 {"spell", schedule_.spell()},
                                 {"reason", silence_},
                                 {"next", "the coordinator decides"}});
}

void StandInDesk::Depart(Visit visit) {
  MutexLock lock(&mutex_);
  DepartLocked(visit);
}

void StandInDesk::DepartLocked(Visit visit) {
  const auto visitor = visitors_.find(visit);
  if (visitor == visitors_.end()) return;
  schedule_.OnGone(visitor->second.rank);
  visit_of_.erase(visitor->second.rank);
  visitors_.erase(visitor);
}

void StandInDesk::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  for (const auto& [visit, visitor] : visitors_) {
    schedule_.OnGone(visitor.rank);
    visitor.ear.on_end(Closed());
  }
  visitors_.clear();
  visit_of_.clear();
}

}  // namespace coxswain
