#ifndef COXSWAIN_TESTS_INTEGRATION_MESH_RANKS_H_
#define COXSWAIN_TESTS_INTEGRATION_MESH_RANKS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/reduce/reducer_options.h"

namespace coxswain {

// For tests of hybrid sharding: ranks are threads, and each group along the
// mesh has a network of its own.

constexpr absl::Duration kMeshTimeout = absl::Seconds(60);

// One rank of the mesh dp=replicas,shard=shards.
struct MeshRank {
  int rank = 0;
  int size = 1;
  std::unique_ptr<Communicator> data;
  std::unique_ptr<Communicator> shard;
  std::unique_ptr<Communicator> replicas;

  bool first_replica() const { return replicas->rank() == 0; }
  HybridGroups groups() const { return {shard.get(), replicas.get()}; }
};

// Connects a rank to a group by the group's name: "data", "shard" with the
// number of a replica, or "dp" with that of a slice.
using ConnectMesh = std::function<std::unique_ptr<Communicator>(
    const std::string& group, int rank, int size)>;

// Groups within the process.
ConnectMesh InProcessMesh();
// Shared memory within a shard group, sockets between replicas.
ConnectMesh TwoHosts();

// Runs a function once per rank, each in a thread.
void OnMesh(int replicas, int shards, const ConnectMesh& connect,
            const std::function<void(MeshRank&)>& run);
// Within the process.
void OnMesh(int replicas, int shards,
            const std::function<void(MeshRank&)>& run);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_INTEGRATION_MESH_RANKS_H_
