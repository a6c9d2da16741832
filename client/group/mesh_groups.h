#ifndef COXSWAIN_CLIENT_GROUP_MESH_GROUPS_H_
#define COXSWAIN_CLIENT_GROUP_MESH_GROUPS_H_

#include <memory>

#include "base/mesh.h"
#include "client/group/process_group.h"

namespace coxswain {

// A rank's groups in a mesh; none of them is null. Along an axis that the mesh
// does not have, or that has one coordinate, a rank is in a group alone. Those
// of the same ranks are one group with one communicator, whose collectives have
// one order on all ranks.
struct MeshGroups {
  Mesh mesh;

  std::shared_ptr<ProcessGroup> world;  // all ranks
  std::shared_ptr<ProcessGroup> pp;     // the stages of this replica
  std::shared_ptr<ProcessGroup> dp;     // the replicas of what this rank holds
  std::shared_ptr<ProcessGroup> shard;  // those that share a replica's state
  std::shared_ptr<ProcessGroup> tp;     // those that share each layer
  // dp and shard joined: those that average the same gradients.
  std::shared_ptr<ProcessGroup> data;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_GROUP_MESH_GROUPS_H_
