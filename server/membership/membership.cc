#include "server/membership/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/membership/job_rules.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {

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

void Membership::RunAll(const Calls& calls) {
  for (const auto& call : calls) call();
}

void Membership::NotifyLocked(std::function<void(GenerationObserver*)> notice,
                              Job* job, Calls* calls) {
  CallInOrderLocked({[observers = observers_, notice = std::move(notice)] {
                      for (GenerationObserver* observer : observers)
                        notice(observer);
                    }},
                    job, calls);
}

void Membership::CallInOrderLocked(Calls notices, Job* job, Calls* calls) {
  job->notices->Add([notices = std::move(notices)] { RunAll(notices); });
  calls->push_back([ordered = job->notices] { ordered->Run(); });
}

void Membership::AddObserver(GenerationObserver* observer) {
  observers_.push_back(observer);
}

absl::Status Membership::CheckWorldLocked(const Fence& fence) const {
  if (shut_down_) return absl::UnavailableError("coordinator shuts down");
  if (fence.cluster_id != cluster_id_) {
    return StaleFenceError({"cluster_id", cluster_id_, fence.cluster_id},
                           "this is the coordinator of another cluster");
  }
  if (fence.term != term_) {
    return StaleFenceError(
        {"term", absl::StrCat(term_.value()), absl::StrCat(fence.term.value())},
        "the coordinator was restarted; join again");
  }
  return absl::OkStatus();
}

absl::StatusOr<Membership::Job*> Membership::FindOrAddJobLocked(
    const std::string& name, Calls* calls) {
  const auto found = jobs_.find(name);
  if (found != jobs_.end()) return &found->second;
  if (jobs_.size() >= static_cast<size_t>(options_.max_jobs)) {
    auto oldest = jobs_.end();
    for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
      if (it->second.state != JobState::kEnded) continue;
      // Its observers are to know of its end before another job has its name.
      if (!it->second.notices->idle()) continue;
      if (oldest == jobs_.end() ||
          std::pair(it->second.ended_at, it->second.run.generation) <
              std::pair(oldest->second.ended_at,
                        oldest->second.run.generation)) {
        oldest = it;
      }
    }
    if (oldest == jobs_.end()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the coordinator has ", jobs_.size(),
                       " unfinished jobs; max_jobs is ", options_.max_jobs));
    }
    ForgetLocked(oldest->second, calls);
    jobs_.erase(oldest);
  }
  Job& job = jobs_[name];
  job.name = name;
  job.ended_at = rooms_.clock->Now();
  return &job;
}

void Membership::ForgetLocked(const Job& job, Calls* calls) {
  StateBatch batch;
  if (job.run.generation != Generation(0)) {
    DeleteJob(KeptOf(job, job.run, false), &batch);
  }
  // Also that of a job whose own record is in quarantine.
  rooms_.plans->Forget(job.name, &batch);
  if (batch.empty()) return;
  WriteLocked(
      std::move(batch),
      [name = job.name](const absl::Status& status) {
        if (status.ok()) return;
        LogWarning("job_not_forgotten",
                   {{"job", name}, {"error", status.message()}});
      },
      calls);
}

absl::StatusOr<const Membership::Job*> Membership::FindFencedJobLocked(
    const Fence& fence) const {
  COXSWAIN_RETURN_IF_ERROR(CheckWorldLocked(fence));
  const auto found = jobs_.find(fence.job);
  if (found == jobs_.end()) return NoSuchJobError(fence.job);
  return &found->second;
}

absl::StatusOr<const MemberRecord*> Membership::AdmitLocked(
    const Fence& fence) const {
  COXSWAIN_ASSIGN_OR_RETURN(const Job* const job, FindFencedJobLocked(fence));
  const bool running = job->state == JobState::kRunning;
  if (!running || fence.generation != job->run.generation) {
    return StaleFenceError(
        {"generation",
         running ? absl::StrCat(job->run.generation.value()) : "none",
         absl::StrCat(fence.generation.value())},
        job->last_event.empty() ? "no such generation of this job has begun"
                                : job->last_event);
  }
  const MemberRecord* const record = job->run.members.Find(fence.incarnation);
  if (record != nullptr && IsLive(record->liveness.state)) return record;
  return StaleFenceError(
      {"incarnation", "none",
       absl::StrFormat("%016x", fence.incarnation.value())},
      record != nullptr
          ? absl::StrCat(record->member.ToString(), " has left the job")
          : absl::StrCat("no member of job '", job->name, "' is this process"));
}

absl::StatusOr<Caller> Membership::Admit(const Fence& fence) const {
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(const MemberRecord* const record,
                            AdmitLocked(fence));
  Caller caller;
  caller.identity = record->member.identity;
  caller.rank = record->member.rank;
  caller.world_size =
      static_cast<int>(jobs_.find(fence.job)->second.run.members.size());
  return caller;
}

absl::StatusOr<uint64_t> Membership::AttachmentOf(const Fence& fence) const {
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(const MemberRecord* const record,
                            AdmitLocked(fence));
  if (record->attachment != 0) return record->attachment;
  return absl::NotFoundError(
      absl::StrCat(record->member.ToString(), " is not attached"));
}

absl::StatusOr<std::shared_ptr<const std::vector<Member>>> Membership::PeersOf(
    const Fence& fence) const {
  MutexLock lock(&mutex_);
  COXSWAIN_RETURN_IF_ERROR(AdmitLocked(fence).status());
  return jobs_.find(fence.job)->second.run.members.list();
}

absl::Status Membership::AdmitOperator(const Fence& fence) const {
  MutexLock lock(&mutex_);
  COXSWAIN_RETURN_IF_ERROR(CheckWorldLocked(fence));
  if (fence.generation == Generation(0) &&
      fence.incarnation == Incarnation(0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "this is a request of an operator: generation and incarnation of its "
      "fence must be 0");
}

Membership::Job* Membership::FindRunningLocked(absl::string_view job,
                                               Generation generation) {
  const auto found = jobs_.find(std::string(job));
  if (found == jobs_.end() || found->second.run.generation != generation ||
      found->second.state != JobState::kRunning) {
    return nullptr;
  }
  return &found->second;
}

void Membership::AbortGeneration(absl::string_view job, Generation generation,
                                 const absl::Status& reason) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    Job* const running = FindRunningLocked(job, generation);
    if (running == nullptr) return;
    EndGenerationLocked(reason, nullptr, running, &calls);
    DecideRoundLocked(running, &calls);
  }
  RunAll(calls);
}

void Membership::NotePlan(absl::string_view job, Generation generation,
                          const schedule::Plan& plan) {
  MutexLock lock(&mutex_);
  Job* const running = FindRunningLocked(job, generation);
  if (running != nullptr) running->run.plan = plan;
}

void Membership::Tick() {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    if (shut_down_) return;
    const absl::Time now = rooms_.clock->Now();
    const bool stood_still = StoodStill(now, last_tick_, options_.lease);
    if (stood_still) {
      LogWarning("coordinator_stood_still",
                 {{"for", absl::FormatDuration(now - last_tick_)}});
    }
    last_tick_ = now;
    for (auto& entry : jobs_) {
      Job* const job = &entry.second;
      if (stood_still) BePatient(now, job);
      if (job->state == JobState::kRunning) {
        DecideLivenessLocked(now, job, &calls);
      }
      if (job->state == JobState::kRunning) {
        DecideGrowthLocked(now, job, &calls);
      }
      DecideRoundLocked(now, job, &calls);
      if (job->unsaved && job->commit == nullptr && now >= job->save_again) {
        SaveAgainLocked(job, &calls);
      }
    }
    if (now >= drop_garbage_at_) DropGarbageLocked(&calls);
  }
  RunAll(calls);
  // What the calls took was no standing still: requests were served.
  MutexLock lock(&mutex_);
  last_tick_ = rooms_.clock->Now();
}

void Membership::Shutdown() {
  const absl::Status status = absl::UnavailableError("coordinator shuts down");
  Calls calls;
  {
    MutexLock lock(&mutex_);
    shut_down_ = true;
    for (auto& entry : jobs_) {
      Job& job = entry.second;
      AnswerAllLocked(status, &job, &calls);
      // What waits for a commit is refused as well.
      job.commit = nullptr;
      for (const Change& change : std::exchange(job.deferred, {})) {
        change(&calls);
      }
      for (MemberRecord& record : job.run.members) {
        CloseStreamLocked(status, &record, &calls);
      }
      if (job.state != JobState::kRunning) continue;
      NotifyEndLocked(status, &job, &calls);
    }
  }
  RunAll(calls);
}

}  // namespace coxswain::server
