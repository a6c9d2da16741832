#include "server/membership/job_membership.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/membership/job_rules.h"
#include "server/membership/manifest_agreement.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {
namespace {

// Inputs that wait for one commit: each has a name or two, and a reason.
constexpr size_t kMaxDeferred = 1024;
// Joins among them: each brings a manifest, which may have megabytes, and a
// round keeps no more of them.
constexpr size_t kMaxDeferredJoins = ManifestAgreement::kMaxKept;

}  // namespace

absl::string_view ToString(JobState state) {
  switch (state) {
    case JobState::kForming:
      return "forming";
    case JobState::kRunning:
      return "running";
    case JobState::kEnded:
      return "ended";
  }
  return "unknown";
}

JobMembership::JobMembership(const Coordinator* coordinator,
                             absl::string_view name, absl::Time now)
    : coordinator_(coordinator) {
  job_.name = std::string(name);
  job_.ended_at = now;
}

void JobMembership::Take(JobInput input, absl::Time now, JobEffects* effects) {
  absl::Status turn = CheckTurn(input);
  auto* const join = std::get_if<job_input::Join>(&input);
  if (!turn.ok()) {
    if (join != nullptr) {
      return Refuse(std::move(*join), std::move(turn), effects);
    }
    auto* const leave = std::get_if<job_input::Leave>(&input);
    StatusCallback& callback = leave != nullptr
                                   ? leave->callback
                                   : std::get<job_input::Exit>(input).callback;
    effects->push_back(job_effect::Reply{std::move(callback), std::move(turn)});
    return;
  }
  if (join != nullptr) ++deferred_joins_;
  deferred_.push_back(std::move(input));
  TakeDeferred(now, effects);
}

absl::Status JobMembership::CheckTurn(const JobInput& input) const {
  // These are as many as have been let in before.
  const bool known = std::holds_alternative<job_input::Withdraw>(input) ||
                     std::holds_alternative<job_input::DepartureWritten>(input);
  if (commit_ == nullptr || known) return absl::OkStatus();
  if (deferred_.size() >= kMaxDeferred) {
    return absl::UnavailableError(absl::StrCat(
        "a generation of job '", job_.name, "' is being committed, and ",
        deferred_.size(), " calls wait for that: ask again"));
  }
  if (std::holds_alternative<job_input::Join>(input) &&
      deferred_joins_ >= kMaxDeferredJoins) {
    return absl::UnavailableError(absl::StrCat(
        "a generation of job '", job_.name, "' is being committed, and ",
        deferred_joins_, " more workers wait for that to join: ask again"));
  }
  return absl::OkStatus();
}

void JobMembership::TakeDeferred(absl::Time now, JobEffects* effects) {
  // One of them may lead to the next commit.
  while (commit_ == nullptr && !deferred_.empty()) {
    JobInput input = std::move(deferred_.front());
    deferred_.pop_front();
    if (std::holds_alternative<job_input::Join>(input)) --deferred_joins_;
    std::visit([&](auto& one) { TakeNow(std::move(one), now, effects); },
               input);
  }
}

void JobMembership::CommitRun(RunRecord run, JobEffects* effects) {
  commit_ = std::make_shared<RunCommit>(CommitOf(job_, std::move(run)));
  effects->push_back(job_effect::Commit{commit_});
}

void JobMembership::FinishCommit(absl::StatusOr<schedule::Plan> plan,
                                 absl::Time now, JobEffects* effects) {
  const std::shared_ptr<RunCommit> commit = std::exchange(commit_, nullptr);
  if (plan.ok()) {
    commit->run.plan = *std::move(plan);
    BeginRun(std::move(commit->run), now, effects);
  } else {
    effects->push_back(job_effect::Discard{DropTables(commit->run)});
    GiveUpRound(NotWrittenError(plan.status()), now, effects);
  }
  TakeDeferred(now, effects);
}

bool JobMembership::Runs(Generation generation) const {
  return job_.run.generation == generation && job_.state == JobState::kRunning;
}

void JobMembership::Abort(const absl::Status& reason, absl::Time now,
                          JobEffects* effects) {
  EndGeneration(reason, nullptr, now, effects);
  LookAtRound(now, effects);
}

void JobMembership::NotePlan(const schedule::Plan& plan) {
  job_.run.plan = plan;
}

void JobMembership::Tick(bool paused, absl::Time now, JobEffects* effects) {
  if (paused) RestartTimeouts(now, &job_);
  LookAtStall(now, effects);
  if (job_.state == JobState::kRunning) LookAtLiveness(now, effects);
  if (job_.state == JobState::kRunning) LookAtGrowth(now, effects);
  LookAtRound(now, effects);
  if (job_.unsaved && commit_ == nullptr && now >= job_.save_again) {
    SaveAgain(effects);
  }
}

void JobMembership::Shutdown(const absl::Status& status, absl::Time now,
                             JobEffects* effects) {
  shut_down_ = status;
  AnswerAll(status, now, effects);
  // What waits for a commit is refused as well.
  commit_ = nullptr;
  TakeDeferred(now, effects);
  for (MemberRecord& record : job_.run.members) {
    CloseStream(status, &record, effects);
  }
  if (job_.state != JobState::kRunning) return;
  effects->push_back(job_effect::NotifyEnded{job_.run.generation, status});
}

absl::StatusOr<const MemberRecord*> JobMembership::Admit(
    Generation generation, Incarnation incarnation) const {
  const bool running = job_.state == JobState::kRunning;
  if (!running || generation != job_.run.generation) {
    return StaleFenceError(
        {"generation",
         running ? absl::StrCat(job_.run.generation.value()) : "none",
         absl::StrCat(generation.value())},
        job_.last_event.empty() ? "no such generation of this job has begun"
                                : job_.last_event);
  }
  const MemberRecord* const record = job_.run.members.Find(incarnation);
  if (record != nullptr && IsLive(record->liveness.state)) return record;
  return StaleFenceError(
      {"incarnation", "none", absl::StrFormat("%016x", incarnation.value())},
      record != nullptr
          ? absl::StrCat(record->member.ToString(), " has left the job")
          : absl::StrCat("no member of job '", job_.name, "' is this process"));
}

}  // namespace coxswain::server
