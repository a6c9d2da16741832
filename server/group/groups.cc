#include "server/group/groups.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/group/group_records.h"
#include "server/options/options.h"
#include "server/state/quarantine.h"
#include "server/state/state_writer.h"

namespace coxswain::server {
namespace {

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

// Whether these are the ranks 0 to world_size - 1, in order.
bool IsEveryone(const std::vector<int>& ranks, int world_size) {
  if (ranks.size() != static_cast<size_t>(world_size)) return false;
  for (int rank = 0; rank < world_size; ++rank) {
    if (ranks[rank] != rank) return false;
  }
  return true;
}

}  // namespace

GroupRoom::GroupRoom(const GroupLimits& limits, const Clock* clock,
                     StateWriter* state)
    : limits_(limits), clock_(clock), state_(state) {}

// A stored callback always runs, also when the coordinator stops.
GroupRoom::~GroupRoom() {
  GroupWork work;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_) {
      scope->End(absl::UnavailableError("the coordinator is stopping"),
                 /*drop=*/false, &work);
    }
  }
  RunAll(work.calls);
  WaitUntilWritten(state_);
}

absl::Status GroupRoom::OnResume(
    const std::vector<GenerationResumed>& running) {
  std::set<std::string> kept;
  for (const GenerationResumed& resumed : running) {
    const std::string table = GroupTable(resumed.begin.generation);
    COXSWAIN_ASSIGN_OR_RETURN(const auto records, state_->List(table));
    std::vector<UnreadableRecord> unreadable;
    for (const StateStore::Record& record : records) {
      const absl::Status readable =
          GroupScope::CheckRecord(record, resumed.begin.world_size);
      if (readable.ok()) continue;
      unreadable.push_back({table, record.first, record.second,
                            resumed.begin.job,
                            std::string(readable.message())});
    }
    COXSWAIN_RETURN_IF_ERROR(QuarantineRecords(unreadable, state_));
    // The membership ends it.
    if (!unreadable.empty()) continue;
    kept.insert(table);
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(LoadLocked(resumed, records));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const auto tables, state_->Tables(kGroupTables));
  for (const std::string& table : tables) {
    if (kept.count(table) != 0) continue;
    COXSWAIN_RETURN_IF_ERROR(state_->Apply(StateBatch().DeleteTable(table)));
  }
  return absl::OkStatus();
}

absl::Status GroupRoom::LoadLocked(
    const GenerationResumed& resumed,
    const std::vector<StateStore::Record>& records) {
  if (records.empty() && resumed.left.empty()) return absl::OkStatus();
  const ScopePointer scope =
      AddScopeLocked({resumed.begin.job, resumed.begin.generation});
  COXSWAIN_RETURN_IF_ERROR(scope->Load(records));
  GroupWork nothing;  // Nobody waits yet.
  for (const int rank : resumed.left) scope->barriers().Leave(rank, &nothing);
  return absl::OkStatus();
}

GroupRoom::ScopePointer GroupRoom::AddScopeLocked(const ScopeKey& key) {
  ScopePointer& scope = scopes_[key];
  if (scope == nullptr) {
    scope = std::make_shared<GroupScope>(limits_, key.first, key.second);
  }
  return scope;
}

absl::StatusOr<GroupRoom::ScopePointer> GroupRoom::FindScopeLocked(
    const Fence& fence) {
  COXSWAIN_RETURN_IF_ERROR(ended_.Check(fence));
  return AddScopeLocked({fence.job, fence.generation});
}

void GroupRoom::Finish(const ScopePointer& scope, GroupWork work) {
  RunAll(work.calls);
  for (GroupWork::Commit& commit : work.commits) {
    StateBatch batch = std::move(commit.batch);
    state_->Write(std::move(batch),
                  [this, scope, commit](const absl::Status& status) {
                    if (commit.committed) OnCommitted(scope, commit, status);
                  });
  }
}

void GroupRoom::OnCommitted(const ScopePointer& scope,
                            const GroupWork::Commit& commit,
                            const absl::Status& status) {
  GroupWork work;
  {
    MutexLock lock(&mutex_);
    scope->Committed(commit, status, &work);
  }
  Finish(scope, std::move(work));
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

void GroupRoom::CreateGroup(const Fence& fence, const Caller& caller,
                            absl::string_view name,
                            const std::vector<int>& ranks,
                            const GroupDone& done) {
  if (IsEveryone(ranks, caller.world_size)) {
    return Declare(fence, name, {}, done);
  }
  const absl::Status status = CheckRanks(ranks, caller);
  status.ok() ? Declare(fence, name, ranks, done) : done(status);
}

void GroupRoom::CreateGroupOfAll(const Fence& fence, absl::string_view name,
                                 const GroupDone& done) {
  Declare(fence, name, {}, done);
}

void GroupRoom::Declare(const Fence& fence, absl::string_view name,
                        const std::vector<int>& ranks, const GroupDone& done) {
  absl::Status status = CheckName("group", name);
  GroupWork work;
  ScopePointer scope;
  if (status.ok()) {
    MutexLock lock(&mutex_);
    const absl::StatusOr<ScopePointer> found = FindScopeLocked(fence);
    status = found.status();
    if (found.ok()) {
      scope = *found;
      Declaration declaration;
      declaration.name = std::string(name);
      declaration.groups = {scope->MakeGroup(name, ranks)};
      const GroupInfo group = declaration.groups.front();
      scope->declarations().Declare(
          std::move(declaration),
          [done, group](const absl::Status& declared) {
            if (!declared.ok()) return done(declared);
            done(group);
          },
          &work);
      scope->Started(work);
    }
  }
  if (!status.ok()) return done(status);
  Finish(scope, std::move(work));
}

absl::Status GroupRoom::CheckMesh(const Caller& caller, absl::string_view name,
                                  const std::vector<MeshAxis>& axes) const {
  COXSWAIN_RETURN_IF_ERROR(CheckName("mesh", name));
  for (const MeshAxis& axis : axes) {
    COXSWAIN_RETURN_IF_ERROR(CheckName("mesh axis", axis.name));
  }
  COXSWAIN_RETURN_IF_ERROR(ValidateMesh(axes, caller.world_size));
  // More could be declared, but not read again.
  const size_t groups = axes.size() * caller.world_size;
  if (groups <= limits_.max_groups && groups <= size_t{kMaxWorldSize}) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "a mesh of ", axes.size(), " axes over ", caller.world_size,
      " ranks may pass the limit max_groups of ", limits_.max_groups));
}

void GroupRoom::CreateMesh(const Fence& fence, const Caller& caller,
                           absl::string_view name,
                           const std::vector<MeshAxis>& axes,
                           const MeshDone& done) {
  absl::Status status = CheckMesh(caller, name, axes);
  GroupWork work;
  ScopePointer scope;
  if (status.ok()) {
    MutexLock lock(&mutex_);
    const absl::StatusOr<ScopePointer> found = FindScopeLocked(fence);
    status = found.status();
    if (found.ok()) {
      scope = *found;
      const std::vector<GroupInfo> own =
          scope->MeshGroupsOf(name, axes, caller.rank);
      const auto answer = [done, own](const absl::Status& declared) {
        if (!declared.ok()) return done(declared);
        done(own);
      };
      // All ranks declare it: only the first is to look at all its groups.
      if (scope->declarations().HasMesh(name, axes)) {
        work.calls.push_back([answer] { answer(absl::OkStatus()); });
      } else {
        scope->declarations().Declare(scope->MakeMesh(name, axes), answer,
                                      &work);
      }
      scope->Started(work);
    }
  }
  if (!status.ok()) return done(status);
  Finish(scope, std::move(work));
}

absl::StatusOr<const std::vector<int>*> GroupRoom::MembersLocked(
    GroupScope* scope, const Caller& caller, absl::string_view group) const {
  if (group.empty()) return &scope->Everyone(caller.world_size);
  const GroupInfo* found = scope->declarations().Find(group);
  if (found == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "no group \"", group, "\" in this generation; declare it first"));
  }
  if (found->ranks.empty()) return &scope->Everyone(caller.world_size);
  if (!Contains(found->ranks, caller.rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", caller.rank, " is not in group \"", group, "\""));
  }
  return &found->ranks;
}

absl::StatusOr<GroupRoom::CallId> GroupRoom::ArriveLocked(
    const Fence& fence, const Caller& caller, absl::string_view group,
    absl::string_view tag, absl::Duration timeout, const BarrierDone& done,
    GroupScope* scope, GroupWork* work) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<int>* const ranks,
                            MembersLocked(scope, caller, group));
  const std::string name(group);
  if (scope->barriers().size() >= limits_.max_barriers &&
      !scope->barriers().Contains(name, std::string(tag))) {
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
  const bool waits = scope->barriers().Arrive(name, std::string(tag), *ranks,
                                              std::move(arrival), work);
  return waits ? call : 0;
}

GroupRoom::CallId GroupRoom::Barrier(const Fence& fence, const Caller& caller,
                                     absl::string_view group,
                                     absl::string_view tag,
                                     absl::Duration timeout,
                                     const BarrierDone& done) {
  GroupWork work;
  ScopePointer scope;
  absl::StatusOr<CallId> call = 0;
  if (tag.size() > limits_.max_tag_bytes) {
    call = absl::ResourceExhaustedError(absl::StrCat(
        "a barrier tag of ", tag.size(),
        " bytes passes the limit max_tag_bytes of ", limits_.max_tag_bytes));
  } else {
    MutexLock lock(&mutex_);
    const absl::StatusOr<ScopePointer> found = FindScopeLocked(fence);
    if (found.ok()) {
      scope = *found;
      call = ArriveLocked(fence, caller, group, tag, timeout, done, scope.get(),
                          &work);
      scope->Started(work);
    } else {
      call = found.status();
    }
  }
  if (!call.ok()) done({call.status(), 0, {}});
  Finish(scope, std::move(work));
  return call.ok() ? *call : 0;
}

void GroupRoom::Cancel(CallId call) {
  GroupWork work;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_) scope->barriers().Cancel(call, &work);
  }
  RunAll(work.calls);
}

void GroupRoom::Tick(absl::Time now) {
  GroupWork work;
  {
    MutexLock lock(&mutex_);
    for (auto& [key, scope] : scopes_) scope->barriers().Expire(now, &work);
  }
  RunAll(work.calls);
}

void GroupRoom::OnGenerationEnded(absl::string_view job, Generation generation,
                                  const absl::Status& reason) {
  GroupWork work;
  ScopePointer scope;
  {
    MutexLock lock(&mutex_);
    ended_.End(generation, reason);
    const auto it = scopes_.find(ScopeKey(std::string(job), generation));
    if (it == scopes_.end()) return;
    scope = std::move(it->second);
    scopes_.erase(it);
    scope->End(GenerationGuard::EndOf(job, generation, reason),
               /*drop=*/!absl::IsUnavailable(reason), &work);
  }
  Finish(scope, std::move(work));
}

void GroupRoom::OnMemberLeft(absl::string_view job, Generation generation,
                             int rank) {
  GroupWork work;
  {
    MutexLock lock(&mutex_);
    Fence fence;
    fence.job = std::string(job);
    fence.generation = generation;
    const absl::StatusOr<ScopePointer> scope = FindScopeLocked(fence);
    if (scope.ok()) (*scope)->barriers().Leave(rank, &work);
  }
  RunAll(work.calls);
}

size_t GroupRoom::scope_count() const {
  MutexLock lock(&mutex_);
  return scopes_.size();
}

}  // namespace coxswain::server
