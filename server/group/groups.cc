#include "server/group/groups.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/group/group_records.h"
#include "server/options/options.h"

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

// Returns whether these are the ranks 0 to world_size - 1, in order.
bool IsEveryone(const std::vector<int>& ranks, int world_size) {
  if (ranks.size() != static_cast<size_t>(world_size)) return false;
  for (int rank = 0; rank < world_size; ++rank) {
    if (ranks[rank] != rank) return false;
  }
  return true;
}

}  // namespace

Groups::Groups(const GroupLimits& limits, const Clock* clock,
               StateWriter* state)
    : ScopedComponent(kGroupTables, state), limits_(limits), clock_(clock) {}

std::unique_ptr<GroupScope> Groups::MakeScope(const std::string& job,
                                              Generation generation,
                                              const std::string& table) const {
  return std::make_unique<GroupScope>(limits_, job, generation, table);
}

absl::Status Groups::CheckRecord(const Record& record, int world_size) const {
  return GroupScope::CheckRecord(record, world_size);
}

absl::Status Groups::CheckName(absl::string_view what,
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

void Groups::CreateGroup(const Fence& fence, const Caller& caller,
                         absl::string_view name, const std::vector<int>& ranks,
                         const GroupDone& done) {
  if (IsEveryone(ranks, caller.world_size)) {
    return Declare(fence, name, {}, done);
  }
  const absl::Status status = CheckRanks(ranks, caller);
  status.ok() ? Declare(fence, name, ranks, done) : done(status);
}

void Groups::CreateGroupOfAll(const Fence& fence, absl::string_view name,
                              const GroupDone& done) {
  Declare(fence, name, {}, done);
}

void Groups::Declare(const Fence& fence, absl::string_view name,
                     const std::vector<int>& ranks, const GroupDone& done) {
  absl::Status status = CheckName("group", name);
  if (status.ok()) {
    status = Call(fence, [&](GroupScope* scope, ScopeWork* work) {
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
          work);
      return absl::OkStatus();
    });
  }
  if (!status.ok()) done(status);
}

absl::StatusOr<DeclaredMesh> Groups::CheckMesh(
    const Caller& caller, absl::string_view name,
    const MeshRequest& request) const {
  COXSWAIN_RETURN_IF_ERROR(CheckName("mesh", name));
  for (const MeshAxis& axis : request.axes) {
    COXSWAIN_RETURN_IF_ERROR(CheckName("mesh axis", axis.name));
  }
  // More could be declared, but not read again.
  const size_t sets = request.axes.size() + request.joined.size();
  const size_t groups = sets * caller.world_size;
  if (groups > limits_.max_groups || groups > size_t{kMaxWorldSize}) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a mesh of ", request.axes.size(), " axes and ", request.joined.size(),
        " joined ones over ", caller.world_size,
        " ranks may pass the limit max_groups of ", limits_.max_groups));
  }
  return DeclaredMesh::Create(request, caller.world_size);
}

void Groups::CreateMesh(const Fence& fence, const Caller& caller,
                        absl::string_view name, const MeshRequest& request,
                        const MeshDone& done) {
  const absl::StatusOr<DeclaredMesh> mesh = CheckMesh(caller, name, request);
  if (!mesh.ok()) return done(mesh.status());
  const absl::Status status = Call(fence, [&](GroupScope* scope,
                                              ScopeWork* work) {
    const std::vector<GroupInfo> own =
        scope->MeshGroupsOf(name, *mesh, caller.rank);
    const auto answer = [done, own](const absl::Status& declared) {
      if (!declared.ok()) return done(declared);
      done(own);
    };
    // All ranks declare it: only the first is to look at all its groups.
    if (scope->declarations().HasMesh(name, *mesh)) {
      work->calls.push_back([answer] { answer(absl::OkStatus()); });
    } else {
      scope->declarations().Declare(scope->MakeMesh(name, *mesh), answer, work);
    }
    return absl::OkStatus();
  });
  if (!status.ok()) done(status);
}

absl::StatusOr<const std::vector<int>*> Groups::Members(
    GroupScope* scope, const Caller& caller, absl::string_view group) {
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

absl::StatusOr<Groups::CallId> Groups::Arrive(
    const Fence& fence, const Caller& caller, absl::string_view group,
    absl::string_view tag, absl::Duration timeout, const BarrierDone& done,
    GroupScope* scope, ScopeWork* work) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<int>* const ranks,
                            Members(scope, caller, group));
  const std::string name(group);
  if (scope->barriers().size() >= limits_.max_barriers &&
      !scope->barriers().Contains(name, std::string(tag))) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit max_barriers of ", limits_.max_barriers,
                     " waiting barriers per generation is reached"));
  }
  BarrierArrival arrival;
  arrival.call = NewCall();
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

Groups::CallId Groups::Barrier(const Fence& fence, const Caller& caller,
                               absl::string_view group, absl::string_view tag,
                               absl::Duration timeout,
                               const BarrierDone& done) {
  CallId call = 0;
  absl::Status status;
  if (tag.size() > limits_.max_tag_bytes) {
    status = absl::ResourceExhaustedError(absl::StrCat(
        "a barrier tag of ", tag.size(),
        " bytes passes the limit max_tag_bytes of ", limits_.max_tag_bytes));
  } else {
    status =
        Call(fence, [&](GroupScope* scope, ScopeWork* work) -> absl::Status {
          COXSWAIN_ASSIGN_OR_RETURN(call, Arrive(fence, caller, group, tag,
                                                 timeout, done, scope, work));
          return absl::OkStatus();
        });
  }
  if (!status.ok()) done({status, 0, {}});
  return call;
}

void Groups::OnMemberLeft(absl::string_view job, Generation generation,
                          int rank) {
  Fence fence;
  fence.job = std::string(job);
  fence.generation = generation;
  // It does nothing in a generation that has ended.
  Call(fence, [rank](GroupScope* scope, ScopeWork* work) {
    scope->barriers().Leave(rank, work);
    return absl::OkStatus();
  }).IgnoreError();
}

}  // namespace coxswain::server
