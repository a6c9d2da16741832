#include "server/group/groups.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace coxswain::server {
namespace {

GroupInfo MakeGroup(const Fence& fence, absl::string_view name,
                    std::vector<int> ranks) {
  GroupInfo group;
  group.name = std::string(name);
  group.ranks = std::move(ranks);
  group.communicator_id =
      absl::StrCat(fence.job, "/", fence.generation.value(), "/", name);
  return group;
}

bool Contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

absl::Status CheckRanks(const std::vector<int>& ranks, const Caller& caller) {
  std::set<int> seen;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= caller.world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " is not one of 0 to ",
                       caller.world_size - 1, ", the ranks of this world"));
    }
    if (!seen.insert(rank).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " is named twice"));
    }
  }
  if (seen.count(caller.rank) != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", caller.rank, " declares a group [",
                   absl::StrJoin(ranks, ", "), "] that it is not in"));
}

}  // namespace

GroupRoom::GroupRoom(const GroupLimits& limits, const Clock* clock)
    : limits_(limits), clock_(clock) {}

// A stored callback always runs, also when the coordinator stops.
GroupRoom::~GroupRoom() {
  BarrierCalls calls;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_) {
      scope.barriers.End(absl::UnavailableError("the coordinator is stopping"),
                         &calls);
    }
  }
  RunAll(calls);
}

absl::StatusOr<GroupRoom::Scope*> GroupRoom::FindScopeLocked(
    const Fence& fence) {
  COXSWAIN_RETURN_IF_ERROR(ended_.Check(fence));
  return &scopes_[ScopeKey(fence.job, fence.generation)];
}

absl::Status GroupRoom::CheckName(absl::string_view what,
                                  absl::string_view name) const {
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(c) ||
           absl::string_view("._:/-").find(c) != absl::string_view::npos;
  };
  if (!name.empty() && name.size() <= limits_.max_name_bytes &&
      std::all_of(name.begin(), name.end(), allowed)) {
    return absl::OkStatus();
  }
  // Not printable as it stands, and perhaps very long.
  return absl::InvalidArgumentError(absl::StrCat(
      "the name of a ", what, " has 1 to ", limits_.max_name_bytes,
      " characters of [A-Za-z0-9._:/-]; this one has ", name.size()));
}

absl::Status GroupRoom::DeclareLocked(const std::vector<GroupInfo>& groups,
                                      Scope* scope) {
  size_t added = 0;
  for (const GroupInfo& group : groups) {
    const auto known = scope->groups.find(group.name);
    if (known == scope->groups.end()) {
      ++added;
    } else if (known->second.ranks != group.ranks) {
      return absl::FailedPreconditionError(absl::StrCat(
          "group \"", group.name, "\" is declared with the ranks [",
          absl::StrJoin(group.ranks, ", "), "], but was declared with [",
          absl::StrJoin(known->second.ranks, ", "),
          "]; all members must name the same ranks in the same order"));
    }
  }
  if (scope->groups.size() + added > limits_.max_groups) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit max_groups of ", limits_.max_groups,
                     " groups per generation is reached"));
  }
  for (const GroupInfo& group : groups) {
    scope->groups.emplace(group.name, group);
  }
  return absl::OkStatus();
}

absl::StatusOr<GroupInfo> GroupRoom::CreateGroup(
    const Fence& fence, const Caller& caller, absl::string_view name,
    const std::vector<int>& ranks) {
  COXSWAIN_RETURN_IF_ERROR(CheckName("group", name));
  COXSWAIN_RETURN_IF_ERROR(CheckRanks(ranks, caller));
  const GroupInfo group = MakeGroup(fence, name, ranks);
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(Scope * scope, FindScopeLocked(fence));
  COXSWAIN_RETURN_IF_ERROR(DeclareLocked({group}, scope));
  return group;
}

absl::StatusOr<std::vector<GroupInfo>> GroupRoom::CreateMesh(
    const Fence& fence, const Caller& caller, absl::string_view name,
    const std::vector<MeshAxis>& axes) {
  COXSWAIN_RETURN_IF_ERROR(CheckName("mesh", name));
  for (const MeshAxis& axis : axes) {
    COXSWAIN_RETURN_IF_ERROR(CheckName("mesh axis", axis.name));
  }
  COXSWAIN_RETURN_IF_ERROR(ValidateMesh(axes, caller.world_size));
  if (axes.size() * caller.world_size > limits_.max_groups) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a mesh of ", axes.size(), " axes over ", caller.world_size,
        " ranks may pass the limit max_groups of ", limits_.max_groups));
  }
  std::vector<GroupInfo> groups;
  std::vector<GroupInfo> own(axes.size());
  for (MeshGroup& part : MeshGroups(axes)) {
    groups.push_back(MakeGroup(
        fence, absl::StrCat(name, "/", axes[part.axis].name, "/", part.index),
        std::move(part.ranks)));
    if (Contains(groups.back().ranks, caller.rank)) {
      own[part.axis] = groups.back();
    }
  }
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(Scope * scope, FindScopeLocked(fence));
  const auto known = scope->meshes.find(name);
  if (known != scope->meshes.end()) {
    if (known->second == axes) return own;
    return absl::FailedPreconditionError(
        absl::StrCat("mesh \"", name, "\" is declared as ", MeshToString(axes),
                     ", but was declared as ", MeshToString(known->second)));
  }
  COXSWAIN_RETURN_IF_ERROR(DeclareLocked(groups, scope));
  scope->meshes.emplace(std::string(name), axes);
  return own;
}

absl::StatusOr<std::vector<int>> GroupRoom::MembersLocked(
    const Scope& scope, const Caller& caller, absl::string_view group) const {
  if (group.empty()) {
    std::vector<int> all(caller.world_size);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  const auto it = scope.groups.find(group);
  if (it == scope.groups.end()) {
    return absl::NotFoundError(absl::StrCat(
        "no group \"", group, "\" in this generation; declare it first"));
  }
  if (!Contains(it->second.ranks, caller.rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", caller.rank, " is not in group \"", group, "\""));
  }
  return it->second.ranks;
}

absl::StatusOr<GroupRoom::CallId> GroupRoom::ArriveLocked(
    const Fence& fence, const Caller& caller, absl::string_view group,
    absl::string_view tag, absl::Duration timeout, const BarrierDone& done,
    BarrierCalls* calls) {
  COXSWAIN_ASSIGN_OR_RETURN(Scope * scope, FindScopeLocked(fence));
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<int> ranks,
                            MembersLocked(*scope, caller, group));
  const std::string name(group);
  if (scope->barriers.size() >= limits_.max_barriers &&
      !scope->barriers.Contains(name, std::string(tag))) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit max_barriers of ", limits_.max_barriers,
                     " waiting barriers per generation is reached"));
  }
  BarrierArrival arrival;
  arrival.call = next_call_++;
  arrival.rank = caller.rank;
  arrival.incarnation = fence.incarnation;
  arrival.request_id = fence.request_id;
  arrival.deadline = clock_->Now() + std::min(timeout, limits_.max_timeout);
  arrival.done = done;
  const CallId call = arrival.call;
  const bool waits = scope->barriers.Arrive(name, std::string(tag), ranks,
                                            std::move(arrival), calls);
  return waits ? call : 0;
}

GroupRoom::CallId GroupRoom::Barrier(const Fence& fence, const Caller& caller,
                                     absl::string_view group,
                                     absl::string_view tag,
                                     absl::Duration timeout,
                                     const BarrierDone& done) {
  BarrierCalls calls;
  absl::StatusOr<CallId> call = 0;
  if (tag.size() > limits_.max_tag_bytes) {
    call = absl::ResourceExhaustedError(absl::StrCat(
        "a barrier tag of ", tag.size(),
        " bytes passes the limit max_tag_bytes of ", limits_.max_tag_bytes));
  } else {
    MutexLock lock(&mutex_);
    call = ArriveLocked(fence, caller, group, tag, timeout, done, &calls);
  }
  if (!call.ok()) done({call.status(), 0, {}});
  RunAll(calls);
  return call.ok() ? *call : 0;
}

void GroupRoom::Cancel(CallId call) {
  BarrierCalls calls;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_) scope.barriers.Cancel(call, &calls);
  }
  RunAll(calls);
}

void GroupRoom::Tick(absl::Time now) {
  BarrierCalls calls;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_) scope.barriers.Expire(now, &calls);
  }
  RunAll(calls);
}

void GroupRoom::OnGenerationEnded(absl::string_view job, Generation generation,
                                  const absl::Status& reason) {
  BarrierCalls calls;
  {
    MutexLock lock(&mutex_);
    ended_.End(generation);
    const auto it = scopes_.find(ScopeKey(std::string(job), generation));
    if (it != scopes_.end()) {
      it->second.barriers.End(
          GenerationGuard::EndedError(job, generation, reason.message()),
          &calls);
      scopes_.erase(it);
    }
  }
  RunAll(calls);
}

void GroupRoom::OnMemberLeft(absl::string_view job, Generation generation,
                             int rank) {
  BarrierCalls calls;
  {
    MutexLock lock(&mutex_);
    Fence fence;
    fence.job = std::string(job);
    fence.generation = generation;
    const absl::StatusOr<Scope*> scope = FindScopeLocked(fence);
    if (scope.ok()) (*scope)->barriers.Leave(rank, &calls);
  }
  RunAll(calls);
}

size_t GroupRoom::scope_count() const {
  MutexLock lock(&mutex_);
  return scopes_.size();
}

}  // namespace coxswain::server
