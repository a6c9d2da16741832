#include "server/group/declarations.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/group/group_records.h"
#include "server/state/state_writer.h"

namespace coxswain::server {
namespace {

constexpr size_t kMaxRanksInError = 64;

void Answer(DeclareDone done, const absl::Status& status, ScopeWork* work) {
  work->calls.push_back([done = std::move(done), status] { done(status); });
}

// An error's text is bounded where it is received.
std::string NameGroupRanks(const std::vector<int>& ranks) {
  if (ranks.empty()) return "all ranks";
  const size_t named = std::min<size_t>(ranks.size(), kMaxRanksInError);
  return absl::StrCat(
      "the ranks [", absl::StrJoin(ranks.begin(), ranks.begin() + named, ", "),
      named < ranks.size()
          ? absl::StrCat(", and ", ranks.size() - named, " more")
          : "",
      "]");
}

StateBatch RecordOf(const std::string& table, const Declaration& declaration) {
  const bool mesh = declaration.mesh.has_value();
  return StateBatch().Put(
      table, NameRecord(mesh ? kMeshRecord : kGroupRecord, declaration.name),
      mesh ? EncodeMesh(*declaration.mesh)
           : EncodeRanks(declaration.groups.front().ranks));
}

}  // namespace

const GroupInfo* Declarations::Find(absl::string_view name) const {
  const auto it = groups_.find(name);
  return it == groups_.end() ? nullptr : &it->second;
}

bool Declarations::HasMesh(absl::string_view name,
                           const DeclaredMesh& mesh) const {
  const auto it = meshes_.find(name);
  return it != meshes_.end() && it->second == mesh;
}

void Declarations::Declare(Declaration declaration, DeclareDone done,
                           ScopeWork* work) {
  std::optional<uint64_t> blocker;
  const auto mesh = pending_of_mesh_.find(declaration.name);
  if (declaration.mesh.has_value() && mesh != pending_of_mesh_.end()) {
    blocker = mesh->second;
  }
  for (const GroupInfo& group : declaration.groups) {
    const auto it = pending_of_group_.find(group.name);
    if (it != pending_of_group_.end()) blocker = it->second;
  }
  if (!blocker.has_value()) {
    Start({std::move(declaration), std::move(done)}, work);
  } else if (waiting_ >= max_waiting_) {
    Answer(std::move(done),
           absl::ResourceExhaustedError(
               absl::StrCat("the limit max_declarations of ", max_waiting_,
                            " declarations at once per generation is reached")),
           work);
  } else {
    ++waiting_;
    pending_.at(*blocker).later.push_back(
        {std::move(declaration), std::move(done)});
  }
}

absl::StatusOr<bool> Declarations::Check(const Declaration& declaration) const {
  const auto mesh = meshes_.find(declaration.name);
  if (declaration.mesh.has_value() && mesh != meshes_.end()) {
    if (mesh->second == *declaration.mesh) return true;
    return absl::FailedPreconditionError(
        absl::StrCat("mesh \"", declaration.name, "\" is declared as ",
                     declaration.mesh->ToString(), ", but was declared as ",
                     mesh->second.ToString()));
  }
  size_t added = 0;
  for (const GroupInfo& group : declaration.groups) {
    const auto known = groups_.find(group.name);
    if (known == groups_.end()) {
      ++added;
    } else if (known->second.ranks != group.ranks) {
      return absl::FailedPreconditionError(absl::StrCat(
          "group \"", group.name, "\" is declared with ",
          NameGroupRanks(group.ranks), ", but was declared with ",
          NameGroupRanks(known->second.ranks),
          "; all members must name the same ranks in the same order"));
    }
  }
  if (groups_.size() + pending_of_group_.size() + added > max_groups_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit max_groups of ", max_groups_,
                     " groups per generation is reached"));
  }
  return !declaration.mesh.has_value() && added == 0;
}

void Declarations::Start(Request request, ScopeWork* work) {
  const absl::StatusOr<bool> known = Check(request.declaration);
  if (!known.ok() || *known) {
    Answer(std::move(request.done), known.status(), work);
    return;
  }
  const uint64_t id = next_id_++;
  ScopeWork::Commit commit;
  commit.batch = RecordOf(table_, request.declaration);
  commit.committed = [this, id](const absl::Status& status, ScopeWork* more) {
    Committed(id, status, more);
  };
  for (const GroupInfo& group : request.declaration.groups) {
    pending_of_group_[group.name] = id;
  }
  if (request.declaration.mesh.has_value()) {
    pending_of_mesh_[request.declaration.name] = id;
  }
  pending_[id].first = std::move(request);
  work->commits.push_back(std::move(commit));
}

void Declarations::Committed(uint64_t id, const absl::Status& status,
                             ScopeWork* work) {
  const auto it = pending_.find(id);
  if (it == pending_.end()) return;  // The generation has ended.
  Pending pending = std::move(it->second);
  pending_.erase(it);
  const Declaration& declaration = pending.first.declaration;
  for (const GroupInfo& group : declaration.groups) {
    pending_of_group_.erase(group.name);
  }
  if (declaration.mesh.has_value()) pending_of_mesh_.erase(declaration.name);
  if (status.ok()) Install(declaration);
  Answer(std::move(pending.first.done),
         status.ok() ? status
                     : NotWritten(absl::StrCat("\"", declaration.name,
                                               "\" was not declared"),
                                  status),
         work);
  for (Request& later : pending.later) {
    --waiting_;
    Declare(std::move(later.declaration), std::move(later.done), work);
  }
}

void Declarations::Install(const Declaration& declaration) {
  for (const GroupInfo& group : declaration.groups) {
    groups_.emplace(group.name, group);
  }
  if (declaration.mesh.has_value()) {
    meshes_.emplace(declaration.name, *declaration.mesh);
  }
}

void Declarations::End(const absl::Status& status, ScopeWork* work) {
  for (auto& [id, pending] : pending_) {
    Answer(std::move(pending.first.done), status, work);
    for (Request& later : pending.later) {
      Answer(std::move(later.done), status, work);
    }
  }
  pending_.clear();
}

}  // namespace coxswain::server
