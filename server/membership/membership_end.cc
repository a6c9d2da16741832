// The part of Membership in which members are lost, and generations end.

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/membership/job_rules.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"
#include "server/membership/round.h"

namespace coxswain::server {
namespace {

std::string DescribeExit(const ExitReport& report) {
  return absl::StrCat(report.signal != 0
                          ? absl::StrCat("killed by signal ", report.signal)
                          : absl::StrCat("exited with code ", report.exit_code),
                      " (reported by its launcher)");
}

bool IsReported(const ExitReport& report, const Member& member,
                uint64_t launcher_id) {
  return member.incarnation == report.incarnation &&
         member.identity == report.identity &&
         (launcher_id == 0 || launcher_id == report.launcher_id);
}

}  // namespace

void Membership::CloseStreamLocked(const absl::Status& status,
                                   MemberRecord* record, Calls* calls) {
  if (record->attachment == 0) return;
  MembershipEvent event;
  event.kind = MembershipEvent::Kind::kClosed;
  event.status = status;
  calls->push_back([sink = std::move(record->sink), event = std::move(event)] {
    sink(event);
  });
  attachments_.erase(record->attachment);
  record->attachment = 0;
  record->sink = nullptr;
}

void Membership::LoseMemberLocked(absl::string_view why, MemberRecord* record,
                                  Job* job, Calls* calls) {
  job->run.members.SetState(record, MemberState::kLost);
  record->departure = std::string(why);
  LogWarning("member_lost", {{"job", job->name},
                             {"generation", job->run.generation.value()},
                             {"rank", record->member.rank},
                             {"step", record->progress.step},
                             {"member", record->member.ToString()},
                             {"reason", why}});
  EndGenerationLocked(
      GenerationEndedError(
          absl::StrCat(record->member.ToString(), " was lost: ", why),
          record->member),
      record, job, calls);
}

void Membership::LoseSurvivorLocked(absl::string_view why, MemberRecord* record,
                                    Job* job, Calls* calls) {
  job->run.members.SetState(record, MemberState::kLost);
  record->departure = std::string(why);
  record->rejoins = false;
  job->room.ExpectNoLonger(record->member.identity);
  LogInfo("survivor_lost", {{"job", job->name},
                            {"generation", job->run.generation.value()},
                            {"rank", record->member.rank},
                            {"member", record->member.ToString()},
                            {"reason", why}});
  StateBatch batch;
  PutDeparture(job->run.generation, record->member.rank, DepartureOf(*record),
               &batch);
  SaveLocked(std::move(batch), job, calls);
}

void Membership::EndWellLocked(Job* job, Calls* calls) {
  const size_t members = job->run.members.size();
  const auto rejoin =
      std::count_if(job->run.members.begin(), job->run.members.end(),
                    [](const MemberRecord& record) { return record.rejoins; });
  job->run.ended_well = true;
  std::string reason =
      members == 1 ? absl::StrCat("the only member of job '", job->name,
                                  "' has left in good order")
                   : absl::StrCat("all ", members, " members of job '",
                                  job->name, "' have left in good order");
  if (rejoin > 0) {
    absl::StrAppend(&reason, ", ", rejoin, " of them for the next generation");
  } else if (!IsDone(job->run)) {
    absl::StrAppend(&reason, ", before their work was done");
  }
  EndGenerationLocked(GenerationEndedError(reason, std::nullopt), nullptr, job,
                      calls);
}

void Membership::EndGenerationLocked(const absl::Status& status,
                                     const MemberRecord* lost, Job* job,
                                     Calls* calls) {
  const absl::Time now = rooms_.clock->Now();
  job->ended_at = now;
  job->last_event = std::string(status.message());
  if (!job->run.finished && IsDone(job->run)) Finish(&job->run);
  if (job->run.finished && lost != nullptr) {
    absl::StrAppend(&job->last_event,
                    "; all others had left for good before: nothing is left "
                    "to do");
  }
  LogInfo("generation_ended", {{"job", job->name},
                               {"generation", job->run.generation.value()},
                               {"reason", job->last_event}});
  const auto abort = std::make_shared<MembershipEvent>();
  abort->kind = MembershipEvent::Kind::kAbort;
  abort->reason = job->last_event;
  if (lost != nullptr) abort->member = lost->member;
  abort->status = status;
  ExpectSurvivorsLocked(job);
  for (MemberRecord& record : job->run.members) {
    if (IsLive(record.liveness.state)) {
      record.liveness.state = MemberState::kDetached;
      record.liveness.detached_at = now;
    }
    if (record.attachment == 0) continue;
    calls->push_back([sink = record.sink, abort] { sink(*abort); });
    CloseStreamLocked(status, &record, calls);
  }
  NotifyEndLocked(status, job, calls);
  job->state = JobState::kEnded;
  StateBatch batch;
  if (job->run.finished) {
    AnswerAllLocked(JobFinishedError(job->last_event), job, calls);
    DeleteMembers(job->run.generation, &batch);
    DeleteManifest(job->run.manifest_at, &batch);
    job->run.manifest = nullptr;
  } else if (lost != nullptr) {
    PutDeparture(job->run.generation, lost->member.rank, DepartureOf(*lost),
                 &batch);
  }
  SaveLocked(std::move(batch), job, calls);
  job->bound = !job->room.empty();
  if (!job->room.empty()) {
    job->state = JobState::kForming;
    job->withdrawn.clear();
    job->room.Begin(now, job->survivors_until);
  }
}

void Membership::ExpectSurvivorsLocked(Job* job) {
  job->room.ExpectNobody();
  job->survivors_until = rooms_.clock->Now() + options_.survivor_patience;
  for (const MemberRecord& record : job->run.members) {
    if (IsLive(record.liveness.state) || record.rejoins) {
      job->room.Expect(record.member);
    }
  }
}

void Membership::NotifyEndLocked(const absl::Status& status, Job* job,
                                 Calls* calls) {
  NotifyLocked(
      [name = job->name, generation = job->run.generation,
       status](GenerationObserver* observer) {
        observer->OnGenerationEnded(name, generation, status);
      },
      job, calls);
}

void Membership::ReportExit(const ExitReport& report, ReportCallback callback) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    // Also when it changes nothing: it may be the same report once more.
    const std::function<void()> answer = [this, job = report.job, callback] {
      rooms_.store->AfterWritten(
          [this, job, callback] { callback(CheckSaved(job)); });
    };
    const auto found = jobs_.find(report.job);
    // No worker has a longer name.
    const bool can_match = report.identity.node.size() <=
                           static_cast<size_t>(options_.max_name_bytes);
    if (found == jobs_.end() || !can_match) {
      calls.push_back(answer);
    } else if (const absl::Status turn = CheckTurnLocked(found->second);
               !turn.ok()) {
      calls.push_back(
          [callback = std::move(callback), turn] { callback(turn); });
    } else {
      ChangeLocked(
          [this, report, answer](Calls* after) ABSL_NO_THREAD_SAFETY_ANALYSIS {
            ReportExitLocked(report, after);
            after->push_back(answer);
          },
          &found->second, &calls);
    }
  }
  RunAll(calls);
}

absl::Status Membership::CheckSaved(const std::string& name) const {
  MutexLock lock(&mutex_);
  if (shut_down_) return absl::UnavailableError("coordinator shuts down");
  const auto job = jobs_.find(name);
  if (job == jobs_.end() || !job->second.unsaved) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("what has become of job '", name,
                   "' could not be written yet; report it again"));
}

void Membership::ReportExitLocked(const ExitReport& report, Calls* calls) {
  const auto found = jobs_.find(report.job);
  if (shut_down_ || found == jobs_.end()) return;
  Job* const job = &found->second;
  MemberRecord* const record = job->run.members.Find(report.incarnation);
  if (record != nullptr &&
      IsReported(report, record->member, record->launcher_id)) {
    const bool live = IsLive(record->liveness.state);
    if (live && job->state == JobState::kRunning) {
      LoseMemberLocked(DescribeExit(report), record, job, calls);
    } else if ((live || record->rejoins) && !job->run.finished) {
      LoseSurvivorLocked(DescribeExit(report), record, job, calls);
    }
  }
  ReportWaiterExitLocked(report, job, calls);
  DecideRoundLocked(job, calls);
}

void Membership::ReportWaiterExitLocked(const ExitReport& report, Job* job,
                                        Calls* calls) {
  const Waiter* const waiter = job->room.Find(report.incarnation);
  const bool waits = waiter != nullptr &&
                     IsReported(report, waiter->member, waiter->launcher_id);
  const auto withdrawn = job->withdrawn.find(report.incarnation);
  const bool waited =
      withdrawn != job->withdrawn.end() && withdrawn->second == report.identity;
  if (!waits && !waited) return;
  Member dead;
  dead.identity = report.identity;
  dead.incarnation = report.incarnation;
  dead.rank = -1;
  if (waits) dead.host = waiter->member.host;
  const absl::Status status = GenerationEndedError(
      absl::StrCat("worker ", dead.identity.ToString(), " of job '", job->name,
                   "' ended before all had joined: ", DescribeExit(report)),
      dead);
  // One of a job of fixed size that has only begun to form: its launchers end
  // their other workers, too.
  const bool fixed = job->min_world_size == job->world_size && !job->bound;
  if (job->state == JobState::kForming && fixed) {
    GiveUpRoundLocked(status, job, calls);
  } else if (waits) {
    AnswerLocked(dead.identity, status, job, calls);
    NoteSizes(job);
    if (job->state == JobState::kForming && job->room.empty()) {
      EndRoundLocked(status, job, calls);
    }
  }
}

void Membership::DecideLivenessLocked(absl::Time now, Job* job, Calls* calls) {
  LivenessOptions options;
  options.lease = options_.lease;
  options.reattach_grace = options_.reattach_grace;
  options.broken_peer_grace = options_.broken_peer_grace;
  const bool late = HoldsUp(now, job->run.making_way, options_.rejoin_grace);
  for (MemberRecord& record : job->run.members) {
    LivenessVerdict verdict = DecideLiveness(now, record.liveness, options);
    if (!verdict.lost && late && IsLive(record.liveness.state)) {
      verdict.lost = true;
      verdict.reason =
          absl::StrCat("it did not make way for the next generation within ",
                       absl::FormatDuration(options_.rejoin_grace),
                       ", as others did: is it stuck?");
    }
    if (!verdict.lost) continue;
    LoseMemberLocked(verdict.reason, &record, job, calls);
    return;
  }
}

}  // namespace coxswain::server
