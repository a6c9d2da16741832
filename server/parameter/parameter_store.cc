#include "server/parameter/parameter_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::server {

ParameterStore::ParameterStore(const ParameterLimits& limits,
                               const Clock* clock)
    : limits_(limits),
      clock_(clock),
      total_(std::make_shared<ByteBudget>("max_total_bytes",
                                          limits.max_total_bytes)) {}

ParameterStore::~ParameterStore() = default;

absl::StatusOr<ParameterStore::Job*> ParameterStore::FindJobLocked(
    const Fence& fence, Calls* calls) {
  COXSWAIN_RETURN_IF_ERROR(ended_.Check(fence));
  Job& job = jobs_[fence.job];
  if (job.budget == nullptr) {
    job.budget = std::make_shared<ByteBudget>("max_job_bytes",
                                              limits_.max_job_bytes, total_);
    job.declared = std::make_shared<ByteBudget>(
        "max_declared_bytes", limits_.max_declared_bytes, job.budget);
    job.kept =
        std::make_shared<KeptParameters>(limits_, job.budget, job.declared);
  }
  if (fence.generation < job.generation) {
    return GenerationGuard::EndedError(
        fence.job, fence.generation,
        absl::StrCat("generation ", job.generation.value(),
                     " has begun; join again"));
  }
  Switch(fence.job, fence.generation, &job, calls);
  return &job;
}

void ParameterStore::Switch(absl::string_view name, Generation generation,
                            Job* job, Calls* calls) {
  if (job->generation == generation) return;
  const absl::Status end = GenerationGuard::EndedError(
      name, job->generation,
      absl::StrCat("generation ", generation.value(), " has begun"));
  for (const auto& [id, group] : job->groups) {
    calls->push_back([group = group, end] { group->End(end); });
  }
  job->generation = generation;
  job->ended = false;
  job->groups.clear();
  const Calls answers = job->kept->Begin(generation);
  calls->insert(calls->end(), answers.begin(), answers.end());
}

absl::StatusOr<std::shared_ptr<CollectiveGroup>>
ParameterStore::FindGroupLocked(Job* job, absl::string_view name, int size) {
  if (name.empty() || name.size() > limits_.max_name_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name of a group has 1 to ", limits_.max_name_bytes,
                     " bytes, not ", name.size()));
  }
  if (job->groups.size() >= limits_.max_groups &&
      job->groups.count(std::string(name)) == 0) {
    return ParameterLimitError("max_groups",
                               static_cast<int64_t>(limits_.max_groups),
                               "end some communicators");
  }
  auto& group = job->groups[std::string(name)];
  if (group == nullptr) {
    group = std::make_shared<CollectiveGroup>(limits_, size, job->budget,
                                              job->declared);
  }
  if (group->size() != size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group '", name, "' has ", group->size(), " ranks, not ", size));
  }
  return group;
}

absl::StatusOr<std::unique_ptr<ParameterStore::Participant>>
ParameterStore::JoinGroup(const Fence& fence, absl::string_view group, int rank,
                          int size, std::shared_ptr<Outbox> outbox) {
  if (size < 1 || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " is not a rank of a group of ", size));
  }
  if (size > limits_.max_parts) {
    return ParameterLimitError("max_parts", limits_.max_parts,
                               "take fewer ranks");
  }
  Calls calls;
  auto found = Enter(fence, group, rank, size, std::move(outbox), &calls);
  RunAll(calls);
  if (!found.ok()) return found.status();
  return std::unique_ptr<Participant>(new Participant(
      this, fence, std::string(group), rank, *std::move(found)));
}

absl::StatusOr<std::shared_ptr<CollectiveGroup>> ParameterStore::Enter(
    const Fence& fence, absl::string_view group, int rank, int size,
    std::shared_ptr<Outbox> outbox, Calls* calls) {
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(Job* const job, FindJobLocked(fence, calls));
  // Before the group, which would stay empty if there was nothing left for its
  // first rank.
  COXSWAIN_ASSIGN_OR_RETURN(
      BudgetCharge charge,
      BudgetCharge::Take(job->declared, CollectiveGroup::RankBytes(group)));
  COXSWAIN_ASSIGN_OR_RETURN(auto found, FindGroupLocked(job, group, size));
  COXSWAIN_RETURN_IF_ERROR(
      found->Join(rank, std::move(outbox), std::move(charge)));
  return found;
}

void ParameterStore::LeaveGroup(const Participant& participant) {
  const bool empty = participant.group_->Leave(participant.rank_);
  if (!empty) return;
  MutexLock lock(&mutex_);
  const auto job = jobs_.find(participant.job_);
  if (job == jobs_.end() || job->second.generation != participant.generation_)
    return;
  // As long as some ranks have yet to join, those that join later find a rank
  // that has left, and not a new group.
  auto& groups = job->second.groups;
  const auto it = groups.find(participant.name_);
  if (it != groups.end() && it->second == participant.group_ &&
      participant.group_->AllHaveCome()) {
    groups.erase(it);
  }
}

ParameterStore::Participant::Participant(ParameterStore* parameters,
                                         const Fence& fence, std::string name,
                                         int rank,
                                         std::shared_ptr<CollectiveGroup> group)
    : parameters_(parameters),
      job_(fence.job),
      generation_(fence.generation),
      name_(std::move(name)),
      rank_(rank),
      group_(std::move(group)) {}

ParameterStore::Participant::~Participant() { parameters_->LeaveGroup(*this); }

absl::Status ParameterStore::Participant::Begin(
    const CollectiveOperation& operation) {
  return group_->Begin(rank_, operation, parameters_->clock_->Now());
}

absl::Status ParameterStore::Participant::Append(uint64_t operation,
                                                 int64_t offset,
                                                 std::string bytes,
                                                 uint32_t crc32c) {
  return group_->Append(rank_, operation, offset, std::move(bytes), crc32c);
}

absl::StatusOr<std::shared_ptr<KeptParameters>> ParameterStore::KeptOf(
    const Fence& fence) {
  Calls calls;
  absl::StatusOr<std::shared_ptr<KeptParameters>> kept;
  {
    MutexLock lock(&mutex_);
    const auto job = FindJobLocked(fence, &calls);
    if (job.ok()) {
      kept = (*job)->kept;
    } else {
      kept = job.status();
    }
  }
  RunAll(calls);
  return kept;
}

absl::StatusOr<std::unique_ptr<KeptParameters::Push>> ParameterStore::StartPush(
    const Fence& fence, absl::string_view name, int64_t version, int part,
    const TensorSpec& spec) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto kept, KeptOf(fence));
  return KeptParameters::StartPush(kept, name, version, part, spec);
}

ParameterStore::CallId ParameterStore::Pull(const Fence& fence,
                                            absl::string_view name,
                                            int64_t version,
                                            absl::Duration timeout,
                                            KeptParameters::PullDone done) {
  CallId call = 0;
  {
    MutexLock lock(&mutex_);
    call = ++last_call_;
  }
  const auto kept = KeptOf(fence);
  if (!kept.ok()) {
    done(kept.status());
    return call;
  }
  const absl::Time deadline =
      clock_->Now() + std::min(timeout, limits_.max_timeout);
  (*kept)->Pull(call, name, version, deadline, timeout > absl::ZeroDuration(),
                std::move(done));
  return call;
}

void ParameterStore::Cancel(const Fence& fence, CallId call) {
  const auto kept = KeptOf(fence);
  if (kept.ok()) (*kept)->Cancel(call);
}

absl::StatusOr<std::vector<KeptDescription>> ParameterStore::List(
    const Fence& fence) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto kept, KeptOf(fence));
  return kept->List();
}

absl::StatusOr<bool> ParameterStore::Forget(const Fence& fence,
                                            absl::string_view name) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto kept, KeptOf(fence));
  return kept->Forget(name);
}

void ParameterStore::Tick(absl::Time now) {
  std::vector<std::shared_ptr<CollectiveGroup>> groups;
  std::vector<std::shared_ptr<KeptParameters>> kept;
  {
    MutexLock lock(&mutex_);
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      Job& job = it->second;
      if (job.ended &&
          (job.kept->empty() || now - job.ended_at >= limits_.keep_after_end)) {
        it = jobs_.erase(it);
        continue;
      }
      kept.push_back(job.kept);
      for (const auto& [name, group] : job.groups) groups.push_back(group);
      ++it;
    }
  }
  for (const auto& group : groups) group->Expire(now);
  for (const auto& one : kept) one->Expire(now);
}

void ParameterStore::OnGenerationBegan(const GenerationBegin& begin) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    const auto it = jobs_.find(begin.job);
    if (it == jobs_.end() || begin.generation < it->second.generation) return;
    Switch(begin.job, begin.generation, &it->second, &calls);
  }
  RunAll(calls);
}

void ParameterStore::OnGenerationEnded(absl::string_view job,
                                       Generation generation,
                                       const absl::Status& reason) {
  std::map<std::string, std::shared_ptr<CollectiveGroup>> groups;
  std::shared_ptr<KeptParameters> kept;
  {
    MutexLock lock(&mutex_);
    ended_.End(generation, reason);
    const auto it = jobs_.find(job);
    if (it == jobs_.end() || it->second.generation != generation) return;
    groups.swap(it->second.groups);
    kept = it->second.kept;
    it->second.ended = true;
    it->second.ended_at = clock_->Now();
  }
  const absl::Status end = GenerationGuard::EndOf(job, generation, reason);
  for (const auto& [name, group] : groups) group->End(end);
  kept->End(generation, end);
}

}  // namespace coxswain::server
