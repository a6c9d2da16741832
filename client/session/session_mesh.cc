// The groups of a Session in a mesh.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mesh.h"
#include "base/status_macros.h"
#include "client/group/mesh_groups.h"
#include "client/session/session.h"
#include "client/session/session_core.h"
#include "proto/group.pb.h"

namespace coxswain {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// A group of MeshGroups, and the axes that it goes along.
struct Place {
  Group MeshGroups::*group;
  std::vector<absl::string_view> names;
};

std::vector<Place> PlacesOfGroups() {
  return {{&MeshGroups::pp, {"pp"}},
          {&MeshGroups::dp, {"dp"}},
          {&MeshGroups::shard, {"shard"}},
          {&MeshGroups::tp, {"tp"}},
          {&MeshGroups::data, {"dp", "shard"}}};
}

// What is declared of a mesh: its axes that divide ranks, and of those the ones
// that are joined; not what all ranks are in, or a rank alone.
struct Declared {
  std::vector<MeshAxis> axes;
  std::vector<std::vector<std::string>> joined;
};

Declared DeclaredOf(const Mesh& mesh) {
  Declared declared;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size > 1) declared.axes.push_back(axis);
  }
  if (declared.axes.size() <= 1) return {};
  const int data = mesh.extent("dp") * mesh.extent("shard");
  if (mesh.extent("dp") > 1 && mesh.extent("shard") > 1 && data < mesh.size()) {
    declared.joined = {{"dp", "shard"}};
  }
  return declared;
}

// The name under which all ranks declare it: "mesh/dp2.shard4".
std::string NameOf(const Declared& declared) {
  std::string name = "mesh/";
  for (size_t i = 0; i < declared.axes.size(); ++i) {
    absl::StrAppend(&name, i == 0 ? "" : ".", declared.axes[i].name,
                    declared.axes[i].size);
  }
  return name;
}

absl::Status CheckFits(const Mesh& mesh, int world_size) {
  if (mesh.empty()) {
    return absl::InvalidArgumentError(
        "the job has no mesh: start it with `coxswain run --mesh`, or give "
        "GroupsOf a mesh such as dp=2,shard=2");
  }
  if (!mesh.has_free_axis()) return mesh.Fit(world_size).status();
  return absl::InvalidArgumentError(
      absl::StrCat("the mesh ", mesh.ToString(),
                   " has a free axis: Fit() it to the world size of ",
                   world_size, " first"));
}

}  // namespace

absl::StatusOr<std::vector<Group>> Session::CreateMesh(
    absl::string_view name, const std::vector<MeshAxis>& axes,
    const std::vector<std::vector<std::string>>& joined) {
  MemberContext& member = *core_->member;
  v1::CreateMeshRequest request;
  *request.mutable_fence() = member.NewRequest();
  request.set_name(std::string(name));
  for (const MeshAxis& axis : axes) {
    v1::MeshAxis* wire = request.add_axes();
    wire->set_name(axis.name);
    wire->set_size(axis.size);
  }
  for (const std::vector<std::string>& names : joined) {
    request.add_joined()->mutable_names()->Assign(names.begin(), names.end());
  }
  const auto response = member.stub().CreateMesh(request, member.Call());
  if (!response.ok()) return member.Outcome(response.status());
  const size_t asked = axes.size() + joined.size();
  if (static_cast<size_t>(response->groups_size()) != asked) {
    return absl::UnimplementedError(
        absl::StrCat("the coordinator at ", member.stub().address(),
                     " was asked for ", asked, " groups of the mesh '", name,
                     "' and answered with ", response->groups_size(),
                     ": it is of a version that joins no axes; update it"));
  }
  std::vector<Group> groups;
  for (const v1::GroupInfo& info : response->groups()) {
    COXSWAIN_ASSIGN_OR_RETURN(Group group, core_->Obtain(info));
    groups.push_back(std::move(group));
  }
  return groups;
}

absl::StatusOr<MeshGroups> Session::GroupsOf(const Mesh& mesh) {
  COXSWAIN_RETURN_IF_ERROR(CheckFits(mesh, world_size()));
  MeshGroups groups;
  groups.mesh = mesh;
  COXSWAIN_ASSIGN_OR_RETURN(groups.world, World());
  std::vector<Group> made;
  const Declared declared = DeclaredOf(mesh);
  if (!declared.axes.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(
        made, CreateMesh(NameOf(declared), declared.axes, declared.joined));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const Group alone, core_->ObtainAlone());
  made.push_back(groups.world);
  made.push_back(alone);
  for (const Place& place : PlacesOfGroups()) {
    const std::vector<int> ranks =
        mesh.GroupOf(rank(), mesh.AxesOf(place.names));
    groups.*(place.group) = *std::find_if(
        made.begin(), made.end(),
        [&](const Group& group) { return group->ranks() == ranks; });
  }
  return groups;
}

}  // namespace coxswain
