#include "server/membership/membership.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {
namespace {

// What a worker waits for, in a few words: errors repeat it for several ranks.
constexpr size_t kMaxActivityBytes = 128;

// A number that a former term has left; 1 in a new store.
absl::StatusOr<int64_t> ReadCounter(const StateStore& store,
                                    absl::string_view table,
                                    absl::string_view key) {
  const absl::StatusOr<std::string> text = store.Get(table, key);
  if (absl::IsNotFound(text.status())) return 1;
  COXSWAIN_RETURN_IF_ERROR(text.status());
  int64_t value = 0;
  if (!absl::SimpleAtoi(*text, &value) || value < 1) {
    return absl::DataLossError(
        absl::StrCat("the stored ", key, " is '", *text, "', not a number"));
  }
  return value;
}

std::string DescribeExit(const ExitReport& report) {
  return absl::StrCat(report.signal != 0
                          ? absl::StrCat("killed by signal ", report.signal)
                          : absl::StrCat("exited with code ", report.exit_code),
                      " (reported by its launcher)");
}

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

absl::StatusOr<std::unique_ptr<Membership>> Membership::Open(
    const MembershipOptions& options, const Rooms& rooms) {
  COXSWAIN_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<Membership> membership(new Membership(options, rooms));
  COXSWAIN_RETURN_IF_ERROR(membership->BeginTerm());
  return membership;
}

absl::Status Membership::BeginTerm() {
  StateStore& store = *rooms_.store;
  absl::StatusOr<std::string> id = store.Get(kClusterTable, "id");
  if (absl::IsNotFound(id.status())) {
    id = absl::StrFormat("%016x%016x", rooms_.random->Next(),
                         rooms_.random->Next());
  }
  COXSWAIN_RETURN_IF_ERROR(id.status());
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t term,
                            ReadCounter(store, kClusterTable, "next_term"));
  COXSWAIN_ASSIGN_OR_RETURN(
      const int64_t generation,
      ReadCounter(store, kClusterTable, kNextGenerationKey));
  COXSWAIN_RETURN_IF_ERROR(store.Apply(
      StateBatch()
          .Put(kClusterTable, "id", *id)
          .Put(kClusterTable, "next_term", absl::StrCat(term + 1))));
  MutexLock lock(&mutex_);
  cluster_id_ = *id;
  term_ = Term(term);
  next_generation_ = generation;
  last_tick_ = rooms_.clock->Now();
  return absl::OkStatus();
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

absl::StatusOr<const Membership::MemberRecord*> Membership::AdmitLocked(
    const Fence& fence) const {
  COXSWAIN_ASSIGN_OR_RETURN(const Job* const job, FindFencedJobLocked(fence));
  const bool running = job->state == JobState::kRunning;
  if (!running || fence.generation != job->generation) {
    return StaleFenceError(
        {"generation", running ? absl::StrCat(job->generation.value()) : "none",
         absl::StrCat(fence.generation.value())},
        job->last_event.empty() ? "no such generation of this job has begun"
                                : job->last_event);
  }
  const MemberRecord* gone = nullptr;
  for (const MemberRecord& record : job->members) {
    if (record.member.incarnation != fence.incarnation) continue;
    if (IsLive(record.liveness.state)) return &record;
    gone = &record;
  }
  return StaleFenceError(
      {"incarnation", "none",
       absl::StrFormat("%016x", fence.incarnation.value())},
      gone != nullptr
          ? absl::StrCat(gone->member.ToString(), " has left the job")
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
      static_cast<int>(jobs_.find(fence.job)->second.members.size());
  return caller;
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
    COXSWAIN_ASSIGN_OR_RETURN(const MemberRecord* const admitted,
                              AdmitLocked(fence));
    MemberRecord& record = jobs_[fence.job].members[admitted->member.rank];
    CloseStreamLocked(
        absl::CancelledError("a later Attach of the same worker took this "
                             "one's place"),
        &record, &calls);
    record.attachment = attachment = next_handle_++;
    record.sink = std::move(sink);
    record.liveness.state = MemberState::kAttached;
    record.liveness.last_sign = rooms_.clock->Now();
    if (!record.progressed.has_value()) {
      record.progressed = record.liveness.last_sign;
    }
    attachments_[attachment] = {fence.job, record.member.rank};
    LogInfo("attached",
            {{"job", fence.job}, {"member", record.member.ToString()}});
  }
  for (const auto& call : calls) call();
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
      jobs_[found->second.first].members[found->second.second];
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
  return Seat{job, jobs_.at(job).generation, rank};
}

Membership::Job* Membership::FindRunningLocked(absl::string_view job,
                                               Generation generation) {
  const auto found = jobs_.find(std::string(job));
  if (found == jobs_.end() || found->second.generation != generation ||
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
    const Job* const running = FindRunningLocked(job, generation);
    if (running == nullptr) return;
    const bool to_all = std::any_of(
        events.begin(), events.end(), [](const DirectedEvent& directed) {
          return directed.rank == DirectedEvent::kAllRanks;
        });
    sinks.resize(running->members.size());
    for (size_t i = 0; to_all && i < sinks.size(); ++i) {
      sinks[i] = running->members[i].sink;
    }
    for (const DirectedEvent& directed : events) {
      const auto rank = static_cast<size_t>(directed.rank);
      if (rank < sinks.size()) sinks[rank] = running->members[rank].sink;
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
    EndGenerationLocked(reason, std::nullopt, running, &calls);
  }
  for (const auto& call : calls) call();
}

void Membership::NotePlan(absl::string_view job, Generation generation,
                          const Plan& plan) {
  MutexLock lock(&mutex_);
  Job* const running = FindRunningLocked(job, generation);
  if (running != nullptr) running->plan = plan;
}

void Membership::NoteSigns(absl::string_view job, Generation generation,
                           const std::vector<absl::Time>& heard) {
  MutexLock lock(&mutex_);
  Job* const running = FindRunningLocked(job, generation);
  if (running == nullptr) return;
  const size_t known = std::min(heard.size(), running->members.size());
  for (size_t i = 0; i < known; ++i) {
    absl::Time& last = running->members[i].liveness.last_sign;
    last = std::max(last, heard[i]);
  }
}

absl::StatusOr<std::vector<MemberDescription>> Membership::MembersOf(
    absl::string_view job, Generation generation) const {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(std::string(job));
  if (found == jobs_.end() || found->second.generation != generation) {
    return absl::NotFoundError(absl::StrCat("generation ", generation.value(),
                                            " is not the last one of job '",
                                            job, "'"));
  }
  std::vector<MemberDescription> members;
  for (const MemberRecord& record : found->second.members) {
    members.push_back(DescribeLocked(record));
  }
  return members;
}

void Membership::Detach(uint64_t attachment) {
  MutexLock lock(&mutex_);
  const auto found = attachments_.find(attachment);
  if (found == attachments_.end()) return;
  MemberRecord& record =
      jobs_[found->second.first].members[found->second.second];
  record.attachment = 0;
  record.sink = nullptr;
  record.liveness.state = MemberState::kDetached;
  record.liveness.detached_at = rooms_.clock->Now();
  LogWarning("detached",
             {{"job", found->second.first},
              {"member", record.member.ToString()},
              {"grace", absl::FormatDuration(options_.reattach_grace)}});
  attachments_.erase(found);
}

void Membership::CloseStreamLocked(const absl::Status& status,
                                   MemberRecord* record, Calls* calls) {
  if (record->attachment == 0) return;
  AttachEvent event;
  event.kind = AttachEvent::Kind::kClosed;
  event.status = status;
  calls->push_back([sink = std::move(record->sink), event = std::move(event)] {
    sink(event);
  });
  attachments_.erase(record->attachment);
  record->attachment = 0;
  record->sink = nullptr;
}

absl::Status Membership::Leave(const Fence& fence, absl::string_view reason,
                               bool failed) {
  Calls calls;
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    status = LeaveLocked(
        fence, Shorten(reason, static_cast<size_t>(options_.max_reason_bytes)),
        failed, &calls);
  }
  for (const auto& call : calls) call();
  return status;
}

absl::Status Membership::LeaveLocked(const Fence& fence,
                                     absl::string_view reason, bool failed,
                                     Calls* calls) {
  COXSWAIN_RETURN_IF_ERROR(FindFencedJobLocked(fence).status());
  Job* const job = &jobs_[fence.job];
  const auto record = std::find_if(
      job->members.begin(), job->members.end(), [&](const MemberRecord& m) {
        return m.member.incarnation == fence.incarnation;
      });
  if (fence.generation != job->generation || record == job->members.end() ||
      record->liveness.state == MemberState::kLost) {
    return absl::NotFoundError(absl::StrCat(
        "no such member of job '", fence.job, "' in generation ",
        fence.generation.value(), "; it may have been given up already"));
  }
  if (record->liveness.state == MemberState::kLeft) return absl::OkStatus();
  record->liveness.state = MemberState::kLeft;
  CloseStreamLocked(absl::OkStatus(), &*record, calls);
  if (job->state != JobState::kRunning) return absl::OkStatus();
  if (failed) {
    EndGenerationLocked(
        absl::StrCat(record->member.ToString(), " failed: ", reason),
        record->member, job, calls);
    return absl::OkStatus();
  }
  LogInfo("left", {{"job", job->name},
                   {"member", record->member.ToString()},
                   {"reason", reason}});
  AttachEvent event;
  event.kind = AttachEvent::Kind::kMemberLeft;
  event.member = record->member;
  event.reason = std::string(reason);
  calls->push_back([observers = observers_, name = job->name,
                    generation = job->generation, rank = record->member.rank] {
    for (GenerationObserver* observer : observers) {
      observer->OnMemberLeft(name, generation, rank);
    }
  });
  bool all_left = true;
  for (const MemberRecord& other : job->members) {
    if (IsLive(other.liveness.state)) all_left = false;
    if (other.attachment == 0) continue;
    calls->push_back([sink = other.sink, event] { sink(event); });
  }
  if (all_left) {
    job->ended_well = true;
    EndGenerationLocked(
        job->members.size() == 1
            ? absl::StrCat("the only member of job '", job->name,
                           "' has left in good order")
            : absl::StrCat("all ", job->members.size(), " members of job '",
                           job->name, "' have left in good order"),
        std::nullopt, job, calls);
  }
  return absl::OkStatus();
}

void Membership::LoseMemberLocked(absl::string_view why, MemberRecord* record,
                                  Job* job, Calls* calls) {
  record->liveness.state = MemberState::kLost;
  EndGenerationLocked(
      absl::StrCat(record->member.ToString(), " was lost: ", why),
      record->member, job, calls);
}

void Membership::EndGenerationLocked(const std::string& reason,
                                     const std::optional<Member>& lost,
                                     Job* job, Calls* calls) {
  EndGenerationLocked(GenerationEndedError(reason, lost), lost, job, calls);
}

void Membership::EndGenerationLocked(const absl::Status& status,
                                     const std::optional<Member>& lost,
                                     Job* job, Calls* calls) {
  const std::string reason(status.message());
  job->state = JobState::kEnded;
  job->ended_at = rooms_.clock->Now();
  job->last_event = reason;
  job->held.clear();
  LogInfo("generation_ended", {{"job", job->name},
                               {"generation", job->generation.value()},
                               {"reason", reason}});
  AttachEvent abort;
  abort.kind = AttachEvent::Kind::kAbort;
  abort.reason = reason;
  abort.member = lost;
  abort.status = status;
  for (MemberRecord& record : job->members) {
    if (IsLive(record.liveness.state)) {
      job->held[record.member.identity] = record.member.rank;
      record.liveness.state = MemberState::kDetached;
      record.liveness.detached_at = job->ended_at;
    }
    if (record.attachment == 0) continue;
    calls->push_back([sink = record.sink, abort] { sink(abort); });
    CloseStreamLocked(status, &record, calls);
  }
  NotifyObserversLocked(*job, status, calls);
}

void Membership::NotifyObserversLocked(const Job& job,
                                       const absl::Status& status,
                                       Calls* calls) {
  calls->push_back([observers = observers_, name = job.name,
                    generation = job.generation, status] {
    for (GenerationObserver* observer : observers) {
      observer->OnGenerationEnded(name, generation, status);
    }
  });
}

void Membership::ReportExit(const ExitReport& report) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    ReportExitLocked(report, &calls);
  }
  for (const auto& call : calls) call();
}

void Membership::ReportExitLocked(const ExitReport& report, Calls* calls) {
  const auto found = jobs_.find(report.job);
  if (shut_down_ || found == jobs_.end()) return;
  Job* const job = &found->second;
  const auto is_reported = [&](const Member& member, uint64_t launcher_id) {
    return member.incarnation == report.incarnation &&
           member.identity == report.identity &&
           (launcher_id == 0 || launcher_id == report.launcher_id);
  };
  if (job->state == JobState::kRunning) {
    for (MemberRecord& record : job->members) {
      if (!IsLive(record.liveness.state)) continue;
      if (!is_reported(record.member, record.launcher_id)) continue;
      LoseMemberLocked(DescribeExit(report), &record, job, calls);
      return;
    }
    return;
  }
  if (job->state != JobState::kForming) return;
  Member dead;
  dead.identity = report.identity;
  dead.incarnation = report.incarnation;
  dead.rank = -1;
  const auto waiter = job->waiting.find(report.identity);
  const auto withdrawn = job->withdrawn.find(report.incarnation);
  if (waiter != job->waiting.end() &&
      is_reported(waiter->second.member, waiter->second.launcher_id)) {
    dead.host = waiter->second.member.host;
  } else if (withdrawn == job->withdrawn.end() ||
             !(withdrawn->second == report.identity)) {
    return;
  }
  GiveUpRoundLocked(
      GenerationEndedError(
          absl::StrCat("worker ", dead.identity.ToString(), " of job '",
                       job->name,
                       "' ended before all had joined: ", DescribeExit(report)),
          dead),
      job, calls);
}

void Membership::DecideLivenessLocked(Job* job, Calls* calls) {
  const absl::Time now = rooms_.clock->Now();
  for (MemberRecord& record : job->members) {
    const LivenessVerdict verdict = DecideLiveness(
        now, record.liveness, {options_.lease, options_.reattach_grace});
    if (!verdict.lost) continue;
    LoseMemberLocked(verdict.reason, &record, job, calls);
    return;
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
      if (stood_still && job->state == JobState::kRunning) {
        for (MemberRecord& record : job->members) {
          record.liveness = WithPatience(now, record.liveness);
        }
      }
      if (job->state == JobState::kForming) DecideRoundLocked(job, &calls);
      if (job->state == JobState::kRunning) DecideLivenessLocked(job, &calls);
    }
  }
  for (const auto& call : calls) call();
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

JobDescription Membership::DescribeLocked(const Job& job) const {
  JobDescription description;
  description.job = job.name;
  description.state = job.state;
  description.generation = job.generation;
  description.world_size = job.world_size;
  description.plan = job.plan;
  description.last_event = job.last_event;
  if (job.state == JobState::kForming) {
    for (const auto& entry : job.waiting) {
      MemberDescription member;
      member.member = entry.second.member;
      member.member.rank = -1;
      description.members.push_back(std::move(member));
    }
    return description;
  }
  for (const MemberRecord& record : job.members) {
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
      for (auto& waiter : job.waiting) {
        AnswerLocked(&waiter.second, status, &calls);
      }
      job.waiting.clear();
      for (MemberRecord& record : job.members) {
        CloseStreamLocked(status, &record, &calls);
      }
      if (job.state != JobState::kRunning) continue;
      NotifyObserversLocked(job, status, &calls);
    }
  }
  for (const auto& call : calls) call();
}

}  // namespace coxswain::server
