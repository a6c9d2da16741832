// The part of Membership in which members leave of their own accord.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/membership/job_rules.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {
namespace {

// In larger generations a member's departure is not told to all others: when
// all leave, that would be as many messages as the square of their number.
// Nothing depends on it: the rooms are told of every one.
constexpr size_t kMaxToldOfDepartures = 64;

}  // namespace

absl::Status Membership::Leave(const Fence& fence, absl::string_view reason,
                               bool failed, bool rejoin) {
  struct Outcome {
    Mutex mutex;
    CondVar known;
    std::optional<absl::Status> status;
  };
  const auto outcome = std::make_shared<Outcome>();
  LeaveNotice notice;
  notice.reason = std::string(reason);
  notice.failed = failed;
  notice.rejoin = rejoin;
  Leave(fence, notice, [outcome](const absl::Status& status) {
    MutexLock lock(&outcome->mutex);
    outcome->status = status;
    outcome->known.NotifyAll();
  });
  MutexLock lock(&outcome->mutex);
  outcome->known.WaitForWork(&outcome->mutex,
                             [&] { return outcome->status.has_value(); });
  return *outcome->status;
}

void Membership::Leave(const Fence& fence, const LeaveNotice& notice,
                       LeaveCallback callback) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    LeaveNotice shortened = notice;
    shortened.reason = OneLine(
        Shorten(notice.reason, static_cast<size_t>(options_.max_reason_bytes)));
    absl::Status known = FindFencedJobLocked(fence).status();
    if (known.ok()) known = CheckTurnLocked(jobs_[fence.job]);
    if (known.ok()) {
      ChangeLocked(
          [this, fence, shortened = std::move(shortened),
           callback = std::move(callback)](Calls* after)
              ABSL_NO_THREAD_SAFETY_ANALYSIS {
                LeaveLocked(fence, shortened, callback, after);
              },
          &jobs_[fence.job], &calls);
    } else {
      calls.push_back(
          [callback = std::move(callback), known] { callback(known); });
    }
  }
  RunAll(calls);
}

void Membership::LeaveLocked(const Fence& fence, LeaveNotice notice,
                             LeaveCallback callback, Calls* calls) {
  const auto answer = [&](const absl::Status& status) {
    calls->push_back([callback, status] { callback(status); });
  };
  const absl::Status known = FindFencedJobLocked(fence).status();
  if (!known.ok()) return answer(known);
  Job* const job = &jobs_[fence.job];
  MemberRecord* const record = job->run.members.Find(fence.incarnation);
  if (fence.generation != job->run.generation || record == nullptr ||
      record->liveness.state == MemberState::kLost) {
    return answer(absl::NotFoundError(absl::StrCat(
        "no such member of job '", fence.job, "' in generation ",
        fence.generation.value(), "; it may have been given up already")));
  }
  const bool left = record->liveness.state == MemberState::kLeft;
  // One that wanted to come back may still leave for good.
  if (left && (notice.rejoin || !record->rejoins)) {
    return answer(absl::OkStatus());
  }
  if (notice.failed) FailLocked(notice, record, job, calls);
  Departure departure = DepartureOf(*record);
  departure.left = !notice.failed && !record->failed;
  departure.rejoins = notice.rejoin;
  departure.reason = notice.reason;
  StateBatch batch;
  if (!job->run.finished) {
    PutDeparture(job->run.generation, record->member.rank, departure, &batch);
  }
  WriteLocked(
      std::move(batch),
      [this, fence, notice = std::move(notice),
       callback = std::move(callback)](const absl::Status& status) {
        FinishLeave(fence, notice, status, callback);
      },
      calls);
}

void Membership::FinishLeave(const Fence& fence, const LeaveNotice& notice,
                             const absl::Status& written,
                             const LeaveCallback& callback) {
  if (!written.ok()) {
    LogError("departure_not_saved",
             {{"job", fence.job}, {"error", written.message()}});
    return callback(NotWrittenError(written));
  }
  Calls calls;
  {
    MutexLock lock(&mutex_);
    const auto job = jobs_.find(fence.job);
    if (job == jobs_.end()) {
      calls.push_back([callback] { callback(absl::OkStatus()); });
    } else {
      ChangeLocked(
          [this, fence, notice, callback](Calls* after)
              ABSL_NO_THREAD_SAFETY_ANALYSIS {
                FinishLeaveLocked(fence, notice, after);
                after->push_back([callback] { callback(absl::OkStatus()); });
              },
          &job->second, &calls);
    }
  }
  RunAll(calls);
}

void Membership::FinishLeaveLocked(const Fence& fence,
                                   const LeaveNotice& notice, Calls* calls) {
  Job* const job = &jobs_[fence.job];
  if (job->run.generation != fence.generation) return;
  DepartLocked(notice, job->run.members.Find(fence.incarnation), job, calls);
  DecideRoundLocked(job, calls);
}

void Membership::FailLocked(const LeaveNotice& notice, MemberRecord* record,
                            Job* job, Calls* calls) {
  const bool running = job->state == JobState::kRunning;
  job->run.members.SetState(record, MemberState::kLeft);
  record->departure = notice.reason;
  record->rejoins = notice.rejoin;
  record->failed = true;
  if (!notice.rejoin) job->room.ExpectNoLonger(record->member.identity);
  CloseStreamLocked(absl::OkStatus(), record, calls);
  if (!running) return;
  LogWarning("member_failed", {{"job", job->name},
                               {"generation", job->run.generation.value()},
                               {"rank", record->member.rank},
                               {"step", record->progress.step},
                               {"member", record->member.ToString()},
                               {"reason", notice.reason}});
  EndGenerationLocked(
      GenerationEndedError(
          absl::StrCat(record->member.ToString(), " failed: ", notice.reason),
          record->member),
      record, job, calls);
}

void Membership::DepartLocked(const LeaveNotice& notice, MemberRecord* record,
                              Job* job, Calls* calls) {
  const bool was_live = IsLive(record->liveness.state);
  if (record->liveness.state == MemberState::kLost) return;
  job->run.members.SetState(record, MemberState::kLeft);
  record->rejoins = notice.rejoin;
  record->departure = notice.reason;
  CloseStreamLocked(absl::OkStatus(), record, calls);
  if (job->state != JobState::kRunning) {
    if (!notice.rejoin) {
      job->room.ExpectNoLonger(record->member.identity);
    }
    return;
  }
  if (!was_live) return;
  LogInfo("left", {{"job", job->name},
                   {"generation", job->run.generation.value()},
                   {"rank", record->member.rank},
                   {"step", record->progress.step},
                   {"member", record->member.ToString()},
                   {"rejoins", notice.rejoin},
                   {"reason", notice.reason}});
  TellDepartureLocked(*record, job, calls);
  if (notice.rejoin && !job->run.making_way.has_value()) {
    job->run.making_way = rooms_.clock->Now();
  }
  if (job->run.members.live() == 0) EndWellLocked(job, calls);
}

void Membership::TellDepartureLocked(const MemberRecord& record, Job* job,
                                     Calls* calls) {
  NotifyLocked(
      [name = job->name, generation = job->run.generation,
       rank = record.member.rank](GenerationObserver* observer) {
        observer->OnMemberLeft(name, generation, rank);
      },
      job, calls);
  if (job->run.members.size() > kMaxToldOfDepartures) return;
  MembershipEvent event;
  event.kind = MembershipEvent::Kind::kMemberLeft;
  event.member = record.member;
  event.reason = record.departure;
  for (const MemberRecord& other : job->run.members) {
    if (other.attachment == 0) continue;
    calls->push_back([sink = other.sink, event] { sink(event); });
  }
}

}  // namespace coxswain::server
