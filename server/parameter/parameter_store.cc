#include "server/parameter/parameter_store.h"

#include <iterator>
#include <utility>
#include <vector>

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

absl::StatusOr<ParameterStore::Scope*> ParameterStore::FindScopeLocked(
    const Fence& fence) {
  COXSWAIN_RETURN_IF_ERROR(ended_.Check(fence));
  Scope& scope = scopes_[fence.generation];
  if (scope.budget == nullptr) TakeBudgetsLocked(fence.job, &scope);
  return &scope;
}

void ParameterStore::TakeBudgetsLocked(const std::string& job, Scope* scope) {
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    it = it->second.bytes.expired() ? jobs_.erase(it) : std::next(it);
  }
  JobBudgets& budgets = jobs_[job];
  scope->budget = budgets.bytes.lock();
  if (scope->budget == nullptr) {
    scope->budget = std::make_shared<ByteBudget>("max_job_bytes",
                                                 limits_.max_job_bytes, total_);
    budgets.bytes = scope->budget;
  }
  scope->declared = budgets.declared.lock();
  if (scope->declared == nullptr) {
    scope->declared = std::make_shared<ByteBudget>(
        "max_declared_bytes", limits_.max_declared_bytes, scope->budget);
    budgets.declared = scope->declared;
  }
}

absl::StatusOr<std::shared_ptr<CollectiveGroup>>
ParameterStore::FindGroupLocked(Scope* scope, absl::string_view name,
                                int size) {
  if (name.empty() || name.size() > limits_.max_name_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name of a group has 1 to ", limits_.max_name_bytes,
                     " bytes, not ", name.size()));
  }
  if (scope->groups.size() >= limits_.max_groups &&
      scope->groups.count(std::string(name)) == 0) {
    return ParameterLimitError("max_groups",
                               static_cast<int64_t>(limits_.max_groups),
                               "end some communicators");
  }
  auto& group = scope->groups[std::string(name)];
  if (group == nullptr) {
    group = std::make_shared<CollectiveGroup>(limits_, size, scope->budget,
                                              scope->declared);
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
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(Scope* const scope, FindScopeLocked(fence));
  // Before the group, which would stay empty if there was nothing left for its
  // first rank.
  COXSWAIN_ASSIGN_OR_RETURN(
      BudgetCharge charge,
      BudgetCharge::Take(scope->declared, CollectiveGroup::RankBytes(group)));
  COXSWAIN_ASSIGN_OR_RETURN(auto found, FindGroupLocked(scope, group, size));
  COXSWAIN_RETURN_IF_ERROR(
      found->Join(rank, std::move(outbox), std::move(charge)));
  return std::unique_ptr<Participant>(new Participant(
      this, fence.generation, std::string(group), rank, std::move(found)));
}

void ParameterStore::LeaveGroup(const Participant& participant) {
  const bool empty = participant.group_->Leave(participant.rank_);
  if (!empty) return;
  MutexLock lock(&mutex_);
  const auto scope = scopes_.find(participant.generation_);
  if (scope == scopes_.end()) return;
  // As long as some ranks have yet to join, those that join later find a rank
  // that has left, and not a new group.
  auto& groups = scope->second.groups;
  const auto it = groups.find(participant.name_);
  if (it != groups.end() && it->second == participant.group_ &&
      participant.group_->AllHaveCome()) {
    groups.erase(it);
  }
}

ParameterStore::Participant::Participant(ParameterStore* parameters,
                                         Generation generation,
                                         std::string name, int rank,
                                         std::shared_ptr<CollectiveGroup> group)
    : parameters_(parameters),
      generation_(generation),
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

void ParameterStore::Tick(absl::Time now) {
  std::vector<std::shared_ptr<CollectiveGroup>> groups;
  {
    MutexLock lock(&mutex_);
    for (const auto& [generation, scope] : scopes_) {
      for (const auto& [name, group] : scope.groups) groups.push_back(group);
    }
  }
  for (const auto& group : groups) group->Expire(now);
}

void ParameterStore::OnGenerationEnded(absl::string_view job,
                                       Generation generation,
                                       const absl::Status& reason) {
  Scope scope;
  {
    MutexLock lock(&mutex_);
    ended_.End(generation, reason);
    const auto it = scopes_.find(generation);
    if (it == scopes_.end()) return;
    scope = std::move(it->second);
    scopes_.erase(it);
  }
  const absl::Status end = GenerationGuard::EndOf(job, generation, reason);
  for (const auto& [name, group] : scope.groups) group->End(end);
}

}  // namespace coxswain::server
