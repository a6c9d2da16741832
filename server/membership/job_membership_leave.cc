// The part of JobMembership in which members leave of their own accord.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/membership/job_membership.h"
#include "server/membership/job_rules.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {
namespace {

// In larger generations a member's departure is not sent to all others: when
// all leave, that would be as many messages as the square of their number.
// Nothing depends on it: the observers learn of every one.
constexpr size_t kMaxSentDepartures = 64;

}  // namespace

void JobMembership::TakeNow(job_input::Leave leave, absl::Time now,
                            JobEffects* effects) {
  const auto answer = [&](absl::Status status) {
    effects->push_back(
        job_effect::Reply{std::move(leave.callback), std::move(status)});
  };
  if (!shut_down_.ok()) return answer(shut_down_);
  const LeaveNotice& notice = leave.notice;
  MemberRecord* const record = job_.run.members.Find(leave.incarnation);
  if (leave.generation != job_.run.generation || record == nullptr ||
      record->liveness.state == MemberState::kLost) {
    return answer(absl::NotFoundError(absl::StrCat(
        "no such member of job '", job_.name, "' in generation ",
        leave.generation.value(), "; it may have been evicted already")));
  }
  const bool left = record->liveness.state == MemberState::kLeft;
  // One that wanted to come back may still leave for good.
  if (left && (notice.rejoin || !record->rejoins)) {
    // Once more: it may not be durable yet, and its write may have failed.
    leave.notice.rejoin = record->rejoins;
    leave.notice.reason = record->departure;
    WriteDeparture({std::move(leave)}, record->member.rank,
                   DepartureOf(*record), effects);
    return;
  }
  if (notice.failed) Fail(notice, record, now, effects);
  Departure departure = DepartureOf(*record);
  departure.left = !notice.failed && !record->failed;
  departure.rejoins = notice.rejoin;
  departure.reason = notice.reason;
  WriteDeparture({std::move(leave)}, record->member.rank, departure, effects);
}

void JobMembership::TakeNow(job_input::DepartureWritten written, absl::Time now,
                            JobEffects* effects) {
  job_input::Leave& leave = written.leave;
  // The next coordinator takes it up where this one stops.
  if (job_.run.generation == leave.generation && shut_down_.ok()) {
    MemberRecord* const record = job_.run.members.Find(leave.incarnation);
    const bool wanted_back =
        record->liveness.state == MemberState::kLeft && record->rejoins;
    Depart(leave.notice, record, now, effects);
    LookAtRound(now, effects);
    if (wanted_back && !leave.notice.rejoin && !written.again) {
      // What it wanted before may have been written meanwhile.
      written.again = true;
      WriteDeparture(std::move(written), record->member.rank,
                     DepartureOf(*record), effects);
      return;
    }
  }
  effects->push_back(
      job_effect::Reply{std::move(leave.callback), absl::OkStatus()});
}

void JobMembership::WriteDeparture(job_input::DepartureWritten written,
                                   int rank, const Departure& departure,
                                   JobEffects* effects) {
  StateBatch batch;
  // Of a finished job only its record is kept.
  if (!job_.run.finished) {
    PutDeparture(job_.run.generation, rank, departure, &batch);
  }
  // One that failed has ended its generation, which is to be as durable.
  if (job_.run.finished || written.leave.notice.failed) {
    PutJob(KeptOf(job_, job_.run, job_.state == JobState::kRunning), &batch);
  }
  effects->push_back(
      job_effect::WriteDeparture{std::move(batch), std::move(written)});
}

void JobMembership::Fail(const LeaveNotice& notice, MemberRecord* record,
                         absl::Time now, JobEffects* effects) {
  const bool running = job_.state == JobState::kRunning;
  job_.run.members.SetState(record, MemberState::kLeft);
  record->departure = notice.reason;
  record->rejoins = notice.rejoin;
  record->failed = true;
  CloseStream(absl::OkStatus(), record, effects);
  if (!notice.rejoin) DropSurvivor(record->member, now, effects);
  if (!running) return;
  LogWarning("member_failed", {{"job", job_.name},
                               {"generation", job_.run.generation.value()},
                               {"rank", record->member.rank},
                               {"step", record->progress.step},
                               {"member", record->member.ToString()},
                               {"reason", notice.reason}});
  EndGeneration(GenerationEndedError(absl::StrCat(record->member.ToString(),
                                                  " failed: ", notice.reason),
                                     record->member),
                record, now, effects);
}

void JobMembership::Depart(const LeaveNotice& notice, MemberRecord* record,
                           absl::Time now, JobEffects* effects) {
  const bool was_live = IsLive(record->liveness.state);
  if (record->liveness.state == MemberState::kLost) return;
  job_.run.members.SetState(record, MemberState::kLeft);
  record->rejoins = notice.rejoin;
  record->departure = notice.reason;
  record->liveness.last_sign = now;
  CloseStream(absl::OkStatus(), record, effects);
  if (!notice.rejoin) DropSurvivor(record->member, now, effects);
  if (job_.state != JobState::kRunning || !was_live) return;
  LogInfo("left", {{"job", job_.name},
                   {"generation", job_.run.generation.value()},
                   {"rank", record->member.rank},
                   {"step", record->progress.step},
                   {"member", record->member.ToString()},
                   {"rejoins", notice.rejoin},
                   {"reason", notice.reason}});
  SendDeparture(*record, effects);
  if (notice.rejoin && !job_.run.making_way.has_value()) {
    job_.run.making_way = now;
  }
  if (job_.run.members.live() == 0) EndWell(now, effects);
}

void JobMembership::DropSurvivor(const Member& member, absl::Time now,
                                 JobEffects* effects) {
  if (job_.state != JobState::kRunning) {
    job_.waiting.ExpectNoLonger(member.identity);
  }
  const Waiter* const waiter = job_.waiting.Find(member.incarnation);
  if (waiter == nullptr) return;
  const absl::Status status = absl::CancelledError(absl::StrCat(
      member.ToString(), " has left job '", job_.name, "' for good"));
  // Not the waiter's own, which ends with it.
  const WorkerIdentity identity = waiter->member.identity;
  Answer(identity, status, now, effects);
  if (job_.state != JobState::kForming) return;
  NoteSizes(&job_);
  if (job_.waiting.empty()) EndRound(status, now, effects);
}

void JobMembership::SendDeparture(const MemberRecord& record,
                                  JobEffects* effects) {
  effects->push_back(
      job_effect::NotifyLeft{job_.run.generation, record.member.rank});
  if (job_.run.members.size() > kMaxSentDepartures) return;
  MembershipEvent event;
  event.kind = MembershipEvent::Kind::kMemberLeft;
  event.member = record.member;
  event.reason = record.departure;
  const auto shared = std::make_shared<const AttachEvent>(std::move(event));
  for (const MemberRecord& other : job_.run.members) {
    if (other.attachment == 0) continue;
    effects->push_back(job_effect::Send{other.sink, shared});
  }
}

}  // namespace coxswain::server
