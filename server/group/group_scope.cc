#include "server/group/group_scope.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/group/group_records.h"

namespace coxswain::server {
namespace {

std::string MeshGroupName(absl::string_view name, const DeclaredMesh& mesh,
                          const MeshAxes& axes, int index) {
  return absl::StrCat(name, "/", mesh.mesh.NameOf(axes), "/", index);
}

}  // namespace

GroupScope::GroupScope(const GroupLimits& limits, std::string job,
                       Generation generation, const std::string& table)
    : job_(std::move(job)),
      generation_(generation),
      declarations_(table, limits.max_groups, limits.max_declarations),
      barriers_(table) {}

GroupInfo GroupScope::MakeGroup(absl::string_view name,
                                std::vector<int> ranks) const {
  GroupInfo group;
  group.name = std::string(name);
  group.ranks = std::move(ranks);
  group.communicator_id =
      absl::StrCat(job_, "/", generation_.value(), "/", name);
  return group;
}

std::vector<GroupInfo> GroupScope::MeshGroupsOf(absl::string_view name,
                                                const DeclaredMesh& mesh,
                                                int rank) const {
  std::vector<GroupInfo> groups;
  for (const MeshAxes& axes : mesh.Along()) {
    groups.push_back(MakeGroup(
        MeshGroupName(name, mesh, axes, mesh.mesh.GroupIndexOf(rank, axes)),
        mesh.mesh.GroupOf(rank, axes)));
  }
  return groups;
}

Declaration GroupScope::MakeMesh(absl::string_view name,
                                 const DeclaredMesh& mesh) const {
  Declaration declaration;
  declaration.name = std::string(name);
  declaration.mesh = mesh;
  for (const MeshAxes& axes : mesh.Along()) {
    int index = 0;
    for (std::vector<int>& ranks : mesh.mesh.GroupsAlong(axes)) {
      declaration.groups.push_back(MakeGroup(
          MeshGroupName(name, mesh, axes, index++), std::move(ranks)));
    }
  }
  return declaration;
}

absl::Status GroupScope::CheckRecord(const StateStore::Record& record,
                                     int world_size) {
  const auto& [key, value] = record;
  const char kind = key.empty() ? '\0' : key[0];
  if (kind == kBarrierRecord) {
    COXSWAIN_RETURN_IF_ERROR(DecodeBarrierRecord(key).status());
    return DecodeRequests(value).status();
  }
  if (key.size() > 1 && kind == kMeshRecord) {
    COXSWAIN_ASSIGN_OR_RETURN(const DeclaredMesh mesh, DecodeMesh(value));
    const absl::Status valid = mesh.mesh.Fit(world_size).status();
    return valid.ok() ? valid : absl::DataLossError(valid.message());
  }
  if (key.size() > 1 && kind == kGroupRecord) {
    COXSWAIN_ASSIGN_OR_RETURN(const std::vector<int> ranks, DecodeRanks(value));
    // None stand for all.
    if (ranks.empty() ||
        *std::max_element(ranks.begin(), ranks.end()) < world_size) {
      return absl::OkStatus();
    }
    return absl::DataLossError(
        absl::StrCat("a group of ", ranks.size(),
                     " ranks names one that is not 0 to ", world_size - 1));
  }
  return absl::DataLossError("a record of the groups is of no known kind");
}

absl::Status GroupScope::Load(const std::vector<StateStore::Record>& records,
                              const std::vector<int>& left) {
  for (const StateStore::Record& record : records) {
    const char kind = record.first.empty() ? '\0' : record.first[0];
    if (kind == kBarrierRecord) {
      COXSWAIN_RETURN_IF_ERROR(barriers_.Load(record));
    } else if (kind == kMeshRecord) {
      COXSWAIN_ASSIGN_OR_RETURN(const DeclaredMesh mesh,
                                DecodeMesh(record.second));
      declarations_.Load(MakeMesh(record.first.substr(1), mesh));
    } else if (kind == kGroupRecord) {
      COXSWAIN_ASSIGN_OR_RETURN(std::vector<int> ranks,
                                DecodeRanks(record.second));
      const std::string name = record.first.substr(1);
      Declaration group;
      group.name = name;
      group.groups.push_back(MakeGroup(name, std::move(ranks)));
      declarations_.Load(group);
    } else {
      return absl::DataLossError("a record of the groups is of no known kind");
    }
  }
  ScopeWork nothing;  // No call waits yet.
  for (const int rank : left) barriers_.Leave(rank, &nothing);
  return absl::OkStatus();
}

const std::vector<int>& GroupScope::Everyone(int world_size) {
  if (everyone_.size() != static_cast<size_t>(world_size)) {
    everyone_.resize(world_size);
    std::iota(everyone_.begin(), everyone_.end(), 0);
  }
  return everyone_;
}

void GroupScope::End(const absl::Status& status, ScopeWork* work) {
  declarations_.End(status, work);
  barriers_.End(status, work);
}

}  // namespace coxswain::server
