#ifndef COXSWAIN_SERVER_GROUP_DECLARED_MESH_H_
#define COXSWAIN_SERVER_GROUP_DECLARED_MESH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mesh.h"

namespace coxswain::server {

// A mesh as a member asks for it: its axes, which may have any names, and sets
// of them, by name, along which there are to be groups as well.
struct MeshRequest {
  std::vector<MeshAxis> axes;
  std::vector<std::vector<std::string>> joined;
};

// A mesh whose groups a generation has: those along each of its axes, then
// those along each set of joined ones.
struct DeclaredMesh {
  Mesh mesh;
  std::vector<MeshAxes> joined;

  // INVALID_ARGUMENT unless the axes have distinct names and positive sizes
  // that multiply to `world_size`, and joined ones are two or more of them, no
  // set twice.
  static absl::StatusOr<DeclaredMesh> Create(MeshRequest request,
                                             int world_size);

  // Returns the sets of axes that there are groups along, in their order.
  std::vector<MeshAxes> Along() const;
  // "dp=2,tp=4", or "dp=2,tp=4 with dp+tp", for messages.
  std::string ToString() const;

  friend bool operator==(const DeclaredMesh& a, const DeclaredMesh& b) {
    return a.mesh == b.mesh && a.joined == b.joined;
  }
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GROUP_DECLARED_MESH_H_
