#include "schedule/fallback_schedule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coxswain::schedule {

FallbackSchedule::FallbackSchedule(Options options)
    : options_(std::move(options)),
      attached_(static_cast<size_t>(options_.world_size), false) {}

FallbackSchedule::Attached FallbackSchedule::OnAttached(int rank) {
  OnDetached(rank);
  Attached result;
  if (broken_) {
    broken_ = false;
    ++epoch_.fallback;
    suspended_.clear();
    received_plan_ = 0;
    for (size_t other = 0; other < attached_.size(); ++other) {
      if (attached_[other]) result.detached.push_back(static_cast<int>(other));
      attached_[other] = false;
    }
  }
  attached_[static_cast<size_t>(rank)] = true;
  result.epoch = epoch_;
  return result;
}

void FallbackSchedule::OnDetached(int rank) {
  if (!attached(rank)) return;
  attached_[static_cast<size_t>(rank)] = false;
  broken_ = true;
  streams_.clear();
}

void FallbackSchedule::Suspend(std::string why) {
  suspended_ = std::move(why);
  streams_.clear();
}

std::string FallbackSchedule::Named(int rank) const {
  const std::string place =
      options_.mesh.empty()
          ? ""
          : absl::StrCat(" (", options_.mesh.Describe(rank), ")");
  return absl::StrCat("rank ", rank, place);
}

StepAgreement* FallbackSchedule::Find(int rank, absl::string_view stream) {
  if (broken_ || !attached(rank) || !suspended_.empty()) return nullptr;
  const auto found = streams_.find(stream);
  if (found != streams_.end()) return &found->second;
  if (stream.size() > options_.max_stream_bytes) {
    Suspend(absl::StrCat(Named(rank), " names a stream with ", stream.size(),
                         " bytes, more than ", options_.max_stream_bytes));
    return nullptr;
  }
  if (streams_.size() >= options_.max_streams) {
    Suspend(absl::StrCat("more than ", options_.max_streams, " streams"));
    return nullptr;
  }
  StepAgreement::Options options;
  options.stream = std::string(stream);
  options.world_size = options_.world_size;
  options.plan = options_.plan();
  options.mesh = options_.mesh;
  options.resumed = true;
  options.checkpoints = stream == kTrainStream;
  options.plans_from_positions = true;
  for (int other = 0; other < options_.world_size; ++other) {
    options.absent.push_back(other);
  }
  return &streams_.emplace(stream, StepAgreement(std::move(options)))
              .first->second;
}

FallbackSchedule::Messages FallbackSchedule::OnPosition(
    int rank, absl::string_view stream, const Decision& last, absl::Time now) {
  StepAgreement* const agreement = Find(rank, stream);
  if (agreement == nullptr) return {};
  if (last.plan.has_value()) {
    received_plan_ = std::max(received_plan_, last.plan->version);
  }
  return Take(stream, *agreement, agreement->OnPosition(rank, last, now));
}

FallbackSchedule::Messages FallbackSchedule::OnTicket(int rank,
                                                      absl::string_view stream,
                                                      const Ticket& ticket,
                                                      absl::Time now) {
  StepAgreement* const agreement = Find(rank, stream);
  if (agreement == nullptr) return {};
  if (!ticket.drain.empty()) {
    Suspend(absl::StrCat(Named(rank), " drains"));
    return {};
  }
  const int64_t newest = std::max(received_plan_, options_.plan().version);
  if (ticket.plan_version > newest) {
    Suspend(absl::StrCat(Named(rank), " follows plan ", ticket.plan_version,
                         ", known is ", newest));
    return {};
  }
  // Such a stream follows a new plan later than "train" does, and only the
  // coordinator knows the plan of its rounds until then.
  const int64_t plan = agreement->plan().version;
  if (stream != kTrainStream && ticket.plan_version != 0 &&
      ticket.plan_version != plan) {
    Suspend(absl::StrCat("stream \"", stream, "\" follows plan ",
                         ticket.plan_version, ", and not ", plan));
    return {};
  }
  return Take(stream, *agreement, agreement->OnTicket(rank, ticket, now));
}

FallbackSchedule::Messages FallbackSchedule::OnVote(int rank,
                                                    absl::string_view stream,
                                                    const Vote& vote,
                                                    absl::Time now) {
  StepAgreement* const agreement = Find(rank, stream);
  if (agreement == nullptr) return {};
  return Take(stream, *agreement, agreement->OnVote(rank, vote, now));
}

FallbackSchedule::Messages FallbackSchedule::Take(
    absl::string_view stream, const StepAgreement& agreement,
    StepAgreement::Messages messages) {
  using Kind = Message::Kind;
  Messages sent;
  for (Message& message : messages) {
    if (message.kind != Kind::kGrant && message.kind != Kind::kDecision) {
      continue;
    }
    message.stream = std::string(stream);
    message.epoch = epoch_;
    sent.push_back(std::move(message));
  }
  // Last: it ends the agreement.
  if (!agreement.failure().ok()) {
    Suspend(std::string(agreement.failure().message()));
  }
  return sent;
}

}  // namespace coxswain::schedule
