// The part of Membership that speaks with attached workers.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {
namespace {

// What a worker waits for, in a few words: errors repeat it for several ranks.
constexpr size_t kMaxActivityBytes = 128;

using schedule::Message;

// By rank; empty where none of the messages is for it, or it is not attached.
std::vector<EventSink> SinksFor(const std::vector<Message>& messages,
                                const MemberTable& members) {
  std::vector<EventSink> sinks(members.size());
  for (const Message& message : messages) {
    const auto rank = static_cast<size_t>(message.rank);
    if (rank < sinks.size()) sinks[rank] = members[rank].sink;
    if (message.rank != Message::kAllRanks) continue;
    for (size_t i = 0; i < sinks.size(); ++i) sinks[i] = members[i].sink;
    break;
  }
  return sinks;
}

void Deliver(const std::vector<EventSink>& sinks,
             const std::vector<Message>& messages) {
  for (const Message& message : messages) {
    const AttachEvent event = message;
    for (size_t rank = 0; rank < sinks.size(); ++rank) {
      const bool meant = message.rank == Message::kAllRanks ||
                         message.rank == static_cast<int>(rank);
      if (meant && sinks[rank] != nullptr) sinks[rank](event);
    }
  }
}

}  // namespace

absl::StatusOr<uint64_t> Membership::Attach(const Fence& fence,
                                            EventSink sink) {
  Calls calls;
  uint64_t attachment = 0;
  {
    MutexLock lock(&mutex_);
    if (fence.cluster_id == cluster_id_ && term_ < fence.term) {
      return absl::UnavailableError(
          absl::StrCat("this worker has heard of a coordinator of term ",
                       fence.term.value(), ", and this is the one of term ",
                       term_.value(), ": a newer coordinator exists"));
    }
    Fence current = fence;
    current.term = term_;
    COXSWAIN_ASSIGN_OR_RETURN(const MemberRecord* const admitted,
                              AdmitLocked(current));
    MemberTable& members = jobs_[fence.job].run.members;
    MemberRecord& record = members[admitted->member.rank];
    CloseStreamLocked(
        absl::CancelledError("a later Attach of the same worker took this "
                             "one's place"),
        &record, &calls);
    record.attachment = attachment = next_handle_++;
    record.sink = std::move(sink);
    members.SetState(&record, MemberState::kAttached);
    record.liveness.heard_this_term = true;
    record.liveness.broken_at = absl::InfinitePast();
    record.liveness.last_sign = rooms_.clock->Now();
    if (!record.progressed.has_value()) {
      record.progressed = record.liveness.last_sign;
    }
    attachments_[attachment] = {fence.job, record.member.rank};
    RefuseDuplicateLocked(record.member, &jobs_[fence.job], &calls);
    LogInfo("attached", {{"job", fence.job},
                         {"generation", fence.generation.value()},
                         {"rank", record.member.rank},
                         {"member", record.member.ToString()}});
  }
  RunAll(calls);
  return attachment;
}

absl::Status Membership::Heartbeat(uint64_t attachment,
                                   const Progress& progress) {
  MutexLock lock(&mutex_);
  const auto found = attachments_.find(attachment);
  if (found == attachments_.end()) {
    return absl::FailedPreconditionError("this worker is not attached");
  }
  MemberRecord& record =
      jobs_[found->second.first].run.members[found->second.second];
  const absl::Time now = rooms_.clock->Now();
  if (!record.progress.SameWork(progress)) record.progressed = now;
  record.progress = progress;
  record.progress.activity =
      OneLine(Shorten(progress.activity, kMaxActivityBytes));
  record.liveness.last_sign = now;
  return absl::OkStatus();
}

absl::StatusOr<Seat> Membership::SeatOf(uint64_t attachment) const {
  MutexLock lock(&mutex_);
  const auto found = attachments_.find(attachment);
  if (found == attachments_.end()) {
    return absl::NotFoundError("this worker is not attached");
  }
  const auto& [job, rank] = found->second;
  return Seat{job, jobs_.at(job).run.generation, rank, attachment};
}

void Membership::Detach(uint64_t attachment) {
  MutexLock lock(&mutex_);
  const auto found = attachments_.find(attachment);
  if (found == attachments_.end()) return;
  MemberRecord& record =
      jobs_[found->second.first].run.members[found->second.second];
  jobs_[found->second.first].run.members.SetState(&record,
                                                  MemberState::kDetached);
  record.attachment = 0;
  record.sink = nullptr;
  record.liveness.detached_at = rooms_.clock->Now();
  LogWarning("detached",
             {{"job", found->second.first},
              {"generation", jobs_[found->second.first].run.generation.value()},
              {"rank", record.member.rank},
              {"step", record.progress.step},
              {"member", record.member.ToString()},
              {"grace", absl::FormatDuration(options_.reattach_grace)}});
  attachments_.erase(found);
}

void Membership::NotePeersBroken(uint64_t attachment,
                                 const std::vector<int>& ranks) {
  MutexLock lock(&mutex_);
  const auto found = attachments_.find(attachment);
  if (found == attachments_.end()) return;
  MemberTable& members = jobs_[found->second.first].run.members;
  // No more than there are, however long the list is.
  const size_t known = std::min(ranks.size(), members.size());
  for (size_t i = 0; i < known; ++i) {
    const int rank = ranks[i];
    if (rank < 0 || static_cast<size_t>(rank) >= members.size()) continue;
    if (rank == found->second.second) continue;
    members[rank].liveness.broken_at = rooms_.clock->Now();
  }
}

void Membership::Tell(absl::string_view job, Generation generation,
                      const std::vector<schedule::Message>& messages) {
  std::vector<EventSink> sinks;  // by rank
  bool makes_way = false;
  Calls calls;
  {
    MutexLock lock(&mutex_);
    Job* const running = FindRunningLocked(job, generation);
    if (running == nullptr) return;
    sinks = SinksFor(messages, running->run.members);
    makes_way = NoteRegroupLocked(messages, running, &calls);
  }
  RunAll(calls);
  if (!makes_way) return Deliver(sinks, messages);
  // Whoever hears of it may leave for good, also at the next coordinator, which
  // must not take that for the end of the work.
  rooms_.store->AfterWritten(
      [sinks = std::move(sinks), messages] { Deliver(sinks, messages); });
}

bool Membership::NoteRegroupLocked(const std::vector<Message>& messages,
                                   Job* job, Calls* calls) {
  const bool regroups = std::any_of(
      messages.begin(), messages.end(),
      [](const Message& message) { return !message.decision.regroup.empty(); });
  if (!regroups || std::exchange(job->run.regroups, true)) return false;
  SaveLocked(StateBatch(), job, calls);
  return true;
}

void Membership::NoteRegroup(absl::string_view job, Generation generation,
                             bool decided) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    Job* const running = FindRunningLocked(job, generation);
    if (running == nullptr) return;
    if (std::exchange(running->run.regroups, decided) == decided) return;
    SaveLocked(StateBatch(), running, &calls);
  }
  RunAll(calls);
}

void Membership::NoteSigns(absl::string_view job, Generation generation,
                           const std::vector<absl::Time>& heard) {
  MutexLock lock(&mutex_);
  Job* const running = FindRunningLocked(job, generation);
  if (running == nullptr) return;
  const size_t known = std::min(heard.size(), running->run.members.size());
  for (size_t i = 0; i < known; ++i) {
    absl::Time& last = running->run.members[i].liveness.last_sign;
    last = std::max(last, heard[i]);
  }
}

}  // namespace coxswain::server
