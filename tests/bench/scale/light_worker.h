#ifndef COXSWAIN_TESTS_BENCH_SCALE_LIGHT_WORKER_H_
#define COXSWAIN_TESTS_BENCH_SCALE_LIGHT_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "proto/group.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"

namespace coxswain::bench {

// Sends what one worker sends to the coordinator, over a real connection of its
// own, and is nothing else of a worker: thousands of them fit into a process.
// All calls return at once; `done` is called once, from a thread of gRPC's. A
// worker does one thing at a time, except for its Attach stream.
class LightWorker {
 public:
  using Done = std::function<void(const absl::Status&)>;
  // Called with the reason when the generation is over.
  using OnAbort = std::function<void(const std::string& reason)>;

  struct Place {
    std::string job;
    int node = 0;
    int slot = 0;  // on the node
    uint64_t incarnation = 0;
    uint64_t launcher = 0;
    int world_size = 0;  // most and fewest of the job
    int min_world_size = 0;
  };
  struct Group {
    std::string id;
    std::vector<int> ranks;
  };

  explicit LightWorker(Place place);
  ~LightWorker();  // waits for its stream to end

  absl::Status Connect(int port);
  void Join(const Done& done);
  // Gets all members, page by page.
  void GetMembers(int from, const Done& done);
  // Opens the stream; done with the coordinator's answer to hello.
  void Attach(const Done& done, const OnAbort& on_abort);
  void Heartbeat(int64_t step);
  // Creates the groups of a mesh of that many nodes by slots.
  void CreateMesh(int nodes, int slots, const Done& done);
  void Set(const std::string& key, const std::string& value, const Done& done);
  // Gets them one after the other, each as soon as it is set.
  void GetAll(std::vector<std::string> keys, const Done& done);
  void Barrier(const std::string& tag, const Done& done);
  // Sends its launcher's report.
  void ReportExit(const Place& of, const Done& done);
  void Detach();

  const Place& place() const { return place_; }
  int rank() const { return rank_; }
  const std::vector<Group>& groups() const { return groups_; }
  // Returns the bytes of the whole connection so far, as TCP counts them.
  int64_t bytes_received() const;
  int64_t bytes_sent() const;

 private:
  class Stream;

  v1::Fence NewFence();
  v1::JoinRequest MakeJoin() const;

  const Place place_;
  int fd_ = -1;  // gRPC's
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Rendezvous::Stub> rendezvous_;
  std::unique_ptr<v1::Group::Stub> group_;
  std::unique_ptr<v1::Store::Stub> store_;
  v1::Fence fence_;
  int64_t last_generation_ = 0;
  int rank_ = -1;
  std::vector<Group> groups_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_SCALE_LIGHT_WORKER_H_
