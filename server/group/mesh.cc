#include "server/group/mesh.h"

#include <cstddef>
#include <cstdint>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coxswain::server {
namespace {

// How far apart two neighbours along `axis` are numbered.
int StrideOf(const std::vector<MeshAxis>& axes, int axis) {
  int stride = 1;
  for (size_t i = axis + 1; i < axes.size(); ++i) stride *= axes[i].size;
  return stride;
}

}  // namespace

absl::Status ValidateMesh(const std::vector<MeshAxis>& axes, int world_size) {
  if (axes.empty()) return absl::InvalidArgumentError("the mesh has no axes");
  std::set<std::string> names;
  int64_t product = 1;
  for (const MeshAxis& axis : axes) {
    if (!names.insert(axis.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the mesh has two axes named \"", axis.name, "\""));
    }
    if (axis.size < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "axis \"", axis.name, "\" has size ", axis.size, "; at least 1"));
    }
    product *= axis.size;
    if (product > world_size) break;  // before it could overflow
  }
  if (product == world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the mesh ", MeshToString(axes), " does not fit the world size of ",
      world_size, ": the sizes must multiply to it"));
}

int MeshGroupIndex(const std::vector<MeshAxis>& axes, int axis, int rank) {
  const int stride = StrideOf(axes, axis);
  return rank / (stride * axes[axis].size) * stride + rank % stride;
}

MeshGroup MeshGroupOf(const std::vector<MeshAxis>& axes, int axis, int rank) {
  const int stride = StrideOf(axes, axis);
  const int size = axes[axis].size;
  const int first = rank - rank / stride % size * stride;
  MeshGroup group = {axis, MeshGroupIndex(axes, axis, rank), {}};
  for (int i = 0; i < size; ++i) group.ranks.push_back(first + i * stride);
  return group;
}

std::vector<MeshGroup> MeshGroups(const std::vector<MeshAxis>& axes) {
  int world_size = 1;
  for (const MeshAxis& axis : axes) world_size *= axis.size;
  std::vector<MeshGroup> groups;
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    const size_t first = groups.size();
    const int count = world_size / axes[axis].size;
    for (int index = 0; index < count; ++index) {
      groups.push_back({static_cast<int>(axis), index, {}});
    }
    for (int rank = 0; rank < world_size; ++rank) {
      groups[first + MeshGroupIndex(axes, axis, rank)].ranks.push_back(rank);
    }
  }
  return groups;
}

std::string MeshToString(const std::vector<MeshAxis>& axes) {
  return absl::StrJoin(axes, ",", [](std::string* out, const MeshAxis& axis) {
    absl::StrAppend(out, axis.name, "=", axis.size);
  });
}

}  // namespace coxswain::server
