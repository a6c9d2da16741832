#ifndef COXSWAIN_SERVER_GROUP_MESH_H_
#define COXSWAIN_SERVER_GROUP_MESH_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace coxswain::server {

// One dimension of a device mesh, such as "dp" of size 4.
struct MeshAxis {
  std::string name;
  int size = 0;

  friend bool operator==(const MeshAxis& a, const MeshAxis& b) {
    return a.name == b.name && a.size == b.size;
  }
};

// The ranks that differ in one axis only.
struct MeshGroup {
  int axis = 0;
  int index = 0;  // row-major over the other axes
  std::vector<int> ranks;
};

// Pure functions over a mesh whose ranks are numbered row-major: the last axis
// varies fastest.

// INVALID_ARGUMENT unless the axes have distinct names and positive sizes that
// multiply to `world_size`.
absl::Status ValidateMesh(const std::vector<MeshAxis>& axes, int world_size);

// All groups of a valid mesh, by axis, then index.
std::vector<MeshGroup> MeshGroups(const std::vector<MeshAxis>& axes);

// Returns the index of the group of `rank` along `axis` of a valid mesh.
int MeshGroupIndex(const std::vector<MeshAxis>& axes, int axis, int rank);

// Returns the group of `rank` along `axis` of a valid mesh; costs no more than
// its size.
MeshGroup MeshGroupOf(const std::vector<MeshAxis>& axes, int axis, int rank);

// "dp=2,tp=4", for messages.
std::string MeshToString(const std::vector<MeshAxis>& axes);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GROUP_MESH_H_
