#ifndef COXSWAIN_CLIENT_COMM_NCCL_RECORDED_GRAPHS_H_
#define COXSWAIN_CLIENT_COMM_NCCL_RECORDED_GRAPHS_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/device/runtime.h"

namespace coxswain {

// A graph with a communicator's collectives. Made by RecordedGraphs, and ended
// by it or by its last owner. Thread-safe.
class RecordedGraph {
 public:
  RecordedGraph(DeviceRuntime* runtime, DeviceGraph graph)
      : runtime_(runtime), graph_(graph) {}
  ~RecordedGraph() { Destroy(); }

  // ABORTED once it was destroyed, and errors of the device.
  absl::Status Launch(DeviceStream stream);
  void Destroy();

 private:
  DeviceRuntime* const runtime_;
  Mutex mutex_;
  DeviceGraph graph_ ABSL_GUARDED_BY(mutex_);
};

// The graphs of one communicator. NCCL does not let go of a communicator that
// is in a graph, so graphs end with their communicator although their sequences
// may still be held. Sequences keep this, by which the communicator knows its
// own. Thread-safe.
class RecordedGraphs {
 public:
  explicit RecordedGraphs(DeviceRuntime* runtime) : runtime_(runtime) {}

  // Takes it over. Destroys it at once if DestroyAll was called.
  std::shared_ptr<RecordedGraph> Add(DeviceGraph graph);
  // Those to come too.
  void DestroyAll();

 private:
  DeviceRuntime* const runtime_;
  Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::weak_ptr<RecordedGraph>> graphs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_RECORDED_GRAPHS_H_
