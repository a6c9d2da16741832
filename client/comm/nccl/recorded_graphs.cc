#include "client/comm/nccl/recorded_graphs.h"

#include <algorithm>

namespace coxswain {

absl::Status RecordedGraph::Launch(DeviceStream stream) {
  MutexLock lock(&mutex_);
  if (graph_ == nullptr) {
    return absl::AbortedError(
        "the communicator that recorded this sequence is over");
  }
  return runtime_->LaunchGraph(graph_, stream);
}

void RecordedGraph::Destroy() {
  MutexLock lock(&mutex_);
  if (graph_ != nullptr) runtime_->DestroyGraph(graph_);
  graph_ = nullptr;
}

std::shared_ptr<RecordedGraph> RecordedGraphs::Add(DeviceGraph graph) {
  auto added = std::make_shared<RecordedGraph>(runtime_, graph);
  MutexLock lock(&mutex_);
  if (over_) added->Destroy();
  graphs_.erase(std::remove_if(graphs_.begin(), graphs_.end(),
                               [](const auto& one) { return one.expired(); }),
                graphs_.end());
  graphs_.push_back(added);
  return added;
}

void RecordedGraphs::DestroyAll() {
  MutexLock lock(&mutex_);
  over_ = true;
  for (const auto& graph : graphs_) {
    if (const auto held = graph.lock(); held != nullptr) held->Destroy();
  }
}

}  // namespace coxswain
