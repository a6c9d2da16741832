#include "server/membership/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {
namespace {

// What a worker waits for, in a few words: errors repeat it for several ranks.
constexpr size_t kMaxActivityBytes = 128;

absl::Status NoSuchJob(absl::string_view job) {
  return absl::NotFoundError(absl::StrCat("no job '", job, "' is known"));
}

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

void Membership::RunAll(const Calls& calls) {
  for (const auto& call : calls) call();
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

absl::StatusOr<const Membership::Job*> Membership::FindFencedJobLocked(
    const Fence& fence) const {
  COXSWAIN_RETURN_IF_ERROR(CheckWorldLocked(fence));
  const auto found = jobs_.find(fence.job);
  if (found == jobs_.end()) return NoSuchJob(fence.job);
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
    LogInfo("attached",
            {{"job", fence.job}, {"member", record.member.ToString()}});
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
  return Seat{job, jobs_.at(job).run.generation, rank};
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

void Membership::Tell(absl::string_view job, Generation generation,
                      const std::vector<DirectedEvent>& events) {
  std::vector<EventSink> sinks;  // by rank
  {
    MutexLock lock(&mutex_);
    Job* const running = FindRunningLocked(job, generation);
    if (running == nullptr) return;
    for (const DirectedEvent& directed : events) {
      if (!directed.event.regroup.empty()) running->run.regroups = true;
    }
    const bool to_all = std::any_of(
        events.begin(), events.end(), [](const DirectedEvent& directed) {
          return directed.rank == DirectedEvent::kAllRanks;
        });
    sinks.resize(running->run.members.size());
    for (size_t i = 0; to_all && i < sinks.size(); ++i) {
      sinks[i] = running->run.members[i].sink;
    }
    for (const DirectedEvent& directed : events) {
      const auto rank = static_cast<size_t>(directed.rank);
      if (rank < sinks.size()) sinks[rank] = running->run.members[rank].sink;
    }
  }
  for (const DirectedEvent& directed : events) {
    for (size_t rank = 0; rank < sinks.size(); ++rank) {
      const bool meant = directed.rank == DirectedEvent::kAllRanks ||
                         directed.rank == static_cast<int>(rank);
      if (meant && sinks[rank] != nullptr) sinks[rank](directed.event);
    }
  }
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
                          const Plan& plan) {
  MutexLock lock(&mutex_);
  Job* const running = FindRunningLocked(job, generation);
  if (running != nullptr) running->run.plan = plan;
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

absl::StatusOr<std::vector<MemberDescription>> Membership::MembersOf(
    absl::string_view job, Generation generation) const {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(std::string(job));
  if (found == jobs_.end() || found->second.run.generation != generation) {
    return absl::NotFoundError(absl::StrCat("generation ", generation.value(),
                                            " is not the last one of job '",
                                            job, "'"));
  }
  std::vector<MemberDescription> members;
  for (const MemberRecord& record : found->second.run.members) {
    members.push_back(DescribeLocked(record));
  }
  return members;
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
      if (stood_still) BePatientLocked(now, job);
      if (job->state == JobState::kRunning) {
        DecideLivenessLocked(now, job, &calls);
      }
      if (job->state == JobState::kRunning) {
        DecideGrowthLocked(now, job, &calls);
      }
      DecideRoundLocked(now, job, &calls);
      if (job->unsaved && now >= job->save_again) SaveAgainLocked(job, &calls);
    }
    if (now >= drop_garbage_at_) DropGarbageLocked(&calls);
  }
  RunAll(calls);
  // What the calls took was no standing still: requests were served.
  MutexLock lock(&mutex_);
  last_tick_ = rooms_.clock->Now();
}

MemberDescription Membership::DescribeLocked(const MemberRecord& record) const {
  const absl::Time now = rooms_.clock->Now();
  MemberDescription description;
  description.member = record.member;
  description.state = record.liveness.state;
  description.progress = record.progress;
  description.silence = now - record.liveness.last_sign;
  description.idle =
      now - record.progressed.value_or(record.liveness.last_sign);
  return description;
}

std::string Membership::DescribeRoundLocked(const Job& job) const {
  RoundOptions options;
  options.min = job.room.min();
  options.max = job.room.max();
  options.last_call = options_.last_call;
  options.mismatch_settle = options_.mismatch_settle;
  return DescribeRound(rooms_.clock->Now(), job.room.State(), options,
                       job.room.Awaited());
}

JobDescription Membership::DescribeLocked(const Job& job) const {
  JobDescription description;
  description.job = job.name;
  description.state = job.state;
  description.generation = job.run.generation;
  description.world_size = job.world_size;
  description.min_world_size = job.min_world_size;
  description.plan = job.run.plan;
  description.last_event = job.last_event;
  description.attempt = job.attempt;
  std::vector<MemberDescription> waiting;
  for (const auto& entry : job.room.waiters()) {
    MemberDescription member;
    member.member = entry.second.member;
    member.member.rank = -1;
    waiting.push_back(std::move(member));
  }
  if (job.state == JobState::kForming) {
    description.members = std::move(waiting);
    // Who looks wants to know both why it stopped and why it does not go on.
    if (!job.last_event.empty()) {
      absl::StrAppend(&description.last_event, "; ", DescribeRoundLocked(job));
    }
    return description;
  }
  description.spares = std::move(waiting);
  for (const MemberRecord& record : job.run.members) {
    description.members.push_back(DescribeLocked(record));
  }
  return description;
}

absl::StatusOr<std::vector<JobDescription>> Membership::Describe(
    absl::string_view job) const {
  MutexLock lock(&mutex_);
  std::vector<JobDescription> descriptions;
  if (!job.empty()) {
    const auto found = jobs_.find(std::string(job));
    if (found == jobs_.end()) return NoSuchJob(job);
    descriptions.push_back(DescribeLocked(found->second));
    return descriptions;
  }
  for (const auto& entry : jobs_) {
    descriptions.push_back(DescribeLocked(entry.second));
  }
  return descriptions;
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
      for (MemberRecord& record : job.run.members) {
        CloseStreamLocked(status, &record, &calls);
      }
      if (job.state != JobState::kRunning) continue;
      NotifyObserversLocked(job, status, &calls);
    }
  }
  RunAll(calls);
}

}  // namespace coxswain::server
