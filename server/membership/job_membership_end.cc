// The part of JobMembership in which members are lost, and generations end.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "schedule/sign_interval.h"
#include "server/membership/job_membership.h"
#include "server/membership/job_rules.h"
#include "server/membership/membership_errors.h"
#include "server/membership/pipeline_places.h"
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

void JobMembership::CloseStream(const absl::Status& status,
                                MemberRecord* record, JobEffects* effects) {
  if (record->attachment == 0) return;
  effects->push_back(job_effect::CloseStream{record->attachment,
                                             std::move(record->sink), status});
  record->attachment = 0;
  record->sink = nullptr;
}

void JobMembership::LoseMember(absl::string_view why, MemberRecord* record,
                               absl::Time now, JobEffects* effects) {
  job_.run.members.SetState(record, MemberState::kLost);
  record->departure = std::string(why);
  LogWarning("member_lost", {{"job", job_.name},
                             {"generation", job_.run.generation.value()},
                             {"rank", record->member.rank},
                             {"step", record->progress.step},
                             {"member", record->member.ToString()},
                             {"reason", why}});
  const std::string place =
      job_.run.plan.terms.pipeline.empty()
          ? ""
          : PlaceWhenLost(job_.run.plan, MeshOf(job_.run), Members(now),
                          options().heartbeat_interval, record->member.rank);
  EndGeneration(GenerationEndedError(
                    absl::StrCat(record->member.ToString(), " was lost: ", why,
                                 place.empty() ? "" : "; ", place),
                    record->member),
                record, now, effects);
}

void JobMembership::LoseSurvivor(absl::string_view why, MemberRecord* record,
                                 JobEffects* effects) {
  job_.run.members.SetState(record, MemberState::kLost);
  record->departure = std::string(why);
  record->rejoins = false;
  job_.waiting.ExpectNoLonger(record->member.identity);
  LogInfo("survivor_lost", {{"job", job_.name},
                            {"generation", job_.run.generation.value()},
                            {"rank", record->member.rank},
                            {"member", record->member.ToString()},
                            {"reason", why}});
  StateBatch batch;
  PutDeparture(job_.run.generation, record->member.rank, DepartureOf(*record),
               &batch);
  Save(std::move(batch), effects);
}

void JobMembership::EndWell(absl::Time now, JobEffects* effects) {
  const size_t members = job_.run.members.size();
  const auto rejoin =
      std::count_if(job_.run.members.begin(), job_.run.members.end(),
                    [](const MemberRecord& record) { return record.rejoins; });
  job_.run.ended_well = true;
  std::string reason = members == 1
                           ? absl::StrCat("the only member of job '", job_.name,
                                          "' has left cleanly")
                           : absl::StrCat("all ", members, " members of job '",
                                          job_.name, "' have left cleanly");
  if (rejoin > 0) {
    absl::StrAppend(&reason, ", ", rejoin, " of them for the next generation");
  } else if (!IsDone(job_.run)) {
    absl::StrAppend(&reason, ", before their work was done");
  }
  EndGeneration(GenerationEndedError(reason, std::nullopt), nullptr, now,
                effects);
}

void JobMembership::EndGeneration(const absl::Status& status,
                                  const MemberRecord* lost, absl::Time now,
                                  JobEffects* effects) {
  job_.ended_at = now;
  NoteLastEvent(status.message(), now);
  for (const MemberRecord& record : job_.run.members) {
    job_.run.last_step = std::max(job_.run.last_step, record.progress.step);
  }
  if (!job_.run.finished && IsDone(job_.run)) Finish(&job_.run);
  if (job_.run.finished && lost != nullptr) {
    absl::StrAppend(&job_.last_event,
                    "; all others had left for good before: nothing is left "
                    "to do");
  }
  if (!job_.run.ended_well) {
    job_.run.end.emplace();
    job_.run.end->reason = job_.last_event;
    if (lost != nullptr) job_.run.end->lost = lost->member;
  }
  LogInfo("generation_ended", {{"job", job_.name},
                               {"generation", job_.run.generation.value()},
                               {"reason", job_.last_event}});
  MembershipEvent abort;
  abort.kind = MembershipEvent::Kind::kAbort;
  abort.reason = job_.last_event;
  if (lost != nullptr) abort.member = lost->member;
  abort.status = status;
  const auto shared = std::make_shared<const AttachEvent>(std::move(abort));
  ExpectSurvivors(now);
  for (MemberRecord& record : job_.run.members) {
    if (IsLive(record.liveness.state)) {
      record.liveness.state = MemberState::kDetached;
      record.liveness.detached_at = now;
    }
    if (record.attachment == 0) continue;
    effects->push_back(job_effect::Send{record.sink, shared});
    CloseStream(status, &record, effects);
  }
  effects->push_back(job_effect::NotifyEnded{job_.run.generation, status});
  job_.state = JobState::kEnded;
  job_.run.data_key.reset();
  StateBatch batch;
  if (job_.run.finished) {
    AnswerAll(JobFinishedError(job_.last_event), now, effects);
    DeleteMembers(job_.run.generation, &batch);
    DeleteManifest(job_.run.manifest_at, &batch);
    job_.run.manifest = nullptr;
  } else if (lost != nullptr) {
    PutDeparture(job_.run.generation, lost->member.rank, DepartureOf(*lost),
                 &batch);
  }
  Save(std::move(batch), effects);
  job_.bound = !job_.waiting.empty();
  if (!job_.waiting.empty()) {
    job_.state = JobState::kForming;
    job_.withdrawn.clear();
    job_.waiting.Begin(now, job_.survivors_until);
  }
}

void JobMembership::NoteLastEvent(absl::string_view event, absl::Time now) {
  job_.last_event = std::string(event);
  job_.last_event_at = now;
  job_.last_event_date = now + coordinator_->calendar;
}

void JobMembership::ExpectSurvivors(absl::Time now) {
  job_.waiting.ExpectNobody();
  job_.survivors_until = now + options().survivor_timeout;
  for (const MemberRecord& record : job_.run.members) {
    if (IsLive(record.liveness.state) || record.rejoins) {
      job_.waiting.Expect(record.member);
    }
  }
}

void JobMembership::TakeNow(job_input::Exit exit, absl::Time now,
                            JobEffects* effects) {
  if (shut_down_.ok()) NoteExit(exit.report, now, effects);
  // Also when it changes nothing: it may be the same report once more.
  effects->push_back(job_effect::ReplyWhenSaved{std::move(exit.callback),
                                                job_.unsaved ? -1 : failures_});
}

void JobMembership::NoteExit(const ExitReport& report, absl::Time now,
                             JobEffects* effects) {
  MemberRecord* const record = job_.run.members.Find(report.incarnation);
  if (record != nullptr &&
      IsReported(report, record->member, record->launcher_id)) {
    const bool live = IsLive(record->liveness.state);
    if (live && job_.state == JobState::kRunning) {
      LoseMember(DescribeExit(report), record, now, effects);
    } else if ((live || record->rejoins) && !job_.run.finished) {
      LoseSurvivor(DescribeExit(report), record, effects);
    }
  }
  NoteWaiterExit(report, now, effects);
  LookAtRound(now, effects);
}

std::optional<GenerationEnd> JobMembership::EndOf(
    const ExitReport& report) const {
  const MemberRecord* const record = job_.run.members.Find(report.incarnation);
  const bool was_member =
      record != nullptr &&
      IsReported(report, record->member, record->launcher_id);
  return was_member ? job_.run.end : std::nullopt;
}

void JobMembership::NoteWaiterExit(const ExitReport& report, absl::Time now,
                                   JobEffects* effects) {
  const Waiter* const waiter = job_.waiting.Find(report.incarnation);
  const bool waits = waiter != nullptr &&
                     IsReported(report, waiter->member, waiter->launcher_id);
  const auto withdrawn = job_.withdrawn.find(report.incarnation);
  const bool waited =
      withdrawn != job_.withdrawn.end() && withdrawn->second == report.identity;
  if (!waits && !waited) return;
  Member dead;
  dead.identity = report.identity;
  dead.incarnation = report.incarnation;
  dead.rank = -1;
  if (waits) dead.host = waiter->member.host;
  const absl::Status status = GenerationEndedError(
      absl::StrCat("worker ", dead.identity.ToString(), " of job '", job_.name,
                   "' ended before all had joined: ", DescribeExit(report)),
      dead);
  // One of a job of fixed size that has only begun to form: its launchers end
  // their other workers, too.
  const bool fixed = job_.min_world_size == job_.world_size && !job_.bound;
  if (job_.state == JobState::kForming && fixed) {
    GiveUpRound(status, now, effects);
  } else if (waits) {
    Answer(dead.identity, status, now, effects);
    NoteSizes(&job_);
    if (job_.state == JobState::kForming && job_.waiting.empty()) {
      EndRound(status, now, effects);
    }
  }
}

std::vector<MemberSigns> JobMembership::Signs() const {
  const absl::Duration usual = HeartbeatInterval(
      options().heartbeat_interval, job_.run.plan.terms.stall_timeout);
  std::vector<MemberSigns> all;
  all.reserve(job_.run.members.size());
  for (const MemberRecord& record : job_.run.members) {
    MemberSigns& signs = all.emplace_back();
    signs.rejoined = job_.waiting.Find(record.member.incarnation) != nullptr;
    // One that has left for the next generation is on its way there. It holds
    // up the join round, but no generation that runs.
    const bool awaited = signs.rejoined || job_.state != JobState::kRunning;
    signs.live = IsLive(record.liveness.state) || (record.rejoins && awaited);
    signs.expected = record.liveness.attached_this_term || !job_.run.resumed;
    signs.last_sign = record.liveness.last_sign;
    signs.reported = record.reported;
    signs.waiting = record.progress.waiting;
    // What it reports, as long as it is no more than this coordinator asks for.
    signs.interval =
        record.progress.interval > absl::ZeroDuration()
            ? std::min(record.progress.interval, options().heartbeat_interval)
            : usual;
    if (job_.state == JobState::kRunning) continue;
    signs.sign_interval = schedule::SignInterval(
        signs.interval, static_cast<int>(job_.run.members.size()));
  }
  return all;
}

bool JobMembership::MayStall() const {
  if (job_.state == JobState::kRunning) return true;
  // A round that could not begin without the survivors waits for them, and has
  // no use for their loss.
  return job_.state == JobState::kForming && commit_ == nullptr &&
         !job_.run.finished && !job_.run.resumed && !job_.starts_anew &&
         job_.waiting.size() >= job_.waiting.min() &&
         job_.waiting.State().survivors_awaited > 0;
}

void JobMembership::LookAtStall(absl::Time now, JobEffects* effects) {
  const absl::Duration timeout = job_.run.plan.terms.stall_timeout;
  if (timeout == absl::InfiniteDuration()) return;
  // What came while this process stood still may not have been taken yet.
  if (WasPaused(now, std::exchange(looked_at_, now), timeout)) {
    looked_since_ = now;
  }
  if (!MayStall()) return;
  // Survivors have their time from the end on.
  const absl::Time since = job_.state == JobState::kRunning
                               ? looked_since_
                               : std::max(looked_since_, job_.ended_at);
  const std::vector<int> stalled = FindStalled(now, Signs(), timeout, since);
  for (const int rank : stalled) {
    MemberRecord& record = job_.run.members[static_cast<size_t>(rank)];
    const std::string why = absl::StrCat(
        "no sign of life for ",
        absl::FormatDuration(absl::Trunc(now - record.liveness.last_sign,
                                         absl::Milliseconds(1))),
        ", while all others wait and nothing moves (stall_timeout=",
        absl::FormatDuration(timeout), ")");
    // The first one ends the generation; the next one is not to wait for any.
    if (job_.state == JobState::kRunning) {
      LoseMember(why, &record, now, effects);
    } else {
      LoseSurvivor(why, &record, effects);
    }
  }
}

void JobMembership::LookAtLiveness(absl::Time now, JobEffects* effects) {
  LivenessOptions liveness;
  liveness.lease = options().lease;
  liveness.reattach_grace = options().reattach_grace;
  liveness.broken_peer_grace = options().broken_peer_grace;
  const bool late = HoldsUp(now, job_.run.making_way, options().rejoin_grace);
  for (MemberRecord& record : job_.run.members) {
    LivenessVerdict verdict = DecideLiveness(now, record.liveness, liveness);
    if (!verdict.lost && late && IsLive(record.liveness.state)) {
      verdict.lost = true;
      verdict.reason =
          absl::StrCat("it did not leave for the next generation within ",
                       absl::FormatDuration(options().rejoin_grace),
                       ", as others did: check whether it is stuck");
    }
    if (!verdict.lost) continue;
    LoseMember(verdict.reason, &record, now, effects);
    return;
  }
}

}  // namespace coxswain::server
