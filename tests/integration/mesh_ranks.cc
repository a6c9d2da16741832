#include "tests/integration/mesh_ranks.h"

#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/comm/memory_store.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/comm/tcp/tcp_communicator.h"

namespace coxswain {

ConnectMesh InProcessMesh() {
  struct Worlds {
    Mutex mutex;
    std::map<std::string, std::shared_ptr<InProcessWorld>> by_group;
  };
  auto worlds = std::make_shared<Worlds>();
  return [worlds](const std::string& group, int rank, int size) {
    MutexLock lock(&worlds->mutex);
    std::shared_ptr<InProcessWorld>& world = worlds->by_group[group];
    if (world == nullptr) world = InProcessWorld::Create(size, kMeshTimeout);
    return world->MakeRank(rank);
  };
}

ConnectMesh TwoHosts() {
  auto store = std::make_shared<MemoryStore>();
  return [store](const std::string& group, int rank,
                 int size) -> std::unique_ptr<Communicator> {
    CommunicatorOptions options;
    options.id = group;
    options.rank = rank;
    options.size = size;
    options.store = store;
    options.timeout = kMeshTimeout;
    auto connected = absl::StartsWith(group, "shard") ? ConnectShm(options)
                                                      : ConnectTcp(options);
    EXPECT_OK(connected);
    return *std::move(connected);
  };
}

void OnMesh(int replicas, int shards, const ConnectMesh& connect,
            const std::function<void(MeshRank&)>& run) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < replicas * shards; ++rank) {
    threads.emplace_back([&, rank] {
      MeshRank me;
      me.rank = rank;
      me.size = replicas * shards;
      const int replica = rank / shards;
      const int place = rank % shards;
      me.data = connect("data", rank, me.size);
      me.shard = connect(absl::StrCat("shard", replica), place, shards);
      me.replicas = connect(absl::StrCat("dp", place), replica, replicas);
      run(me);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void OnMesh(int replicas, int shards,
            const std::function<void(MeshRank&)>& run) {
  OnMesh(replicas, shards, InProcessMesh(), run);
}

}  // namespace coxswain
