#ifndef COXSWAIN_SERVER_MEMBERSHIP_MEMBER_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MEMBER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/ids.h"
#include "schedule/pipeline/place.h"
#include "schedule/plan.h"

namespace coxswain::server {

// The structs of proto/types.proto, for the core.

struct ParameterInfo {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype;
  std::vector<int64_t> strides;  // in elements; empty: row-major
};

// What all workers of a job must have in common: the settings of the plan that
// the program asks for, and the model.
struct Manifest : schedule::StepSettings {
  int world_size = 0;
  std::vector<ParameterInfo> parameters;  // in registration order
  std::map<std::string, std::string> settings;
  // Of the plan, as they were sent: see schedule/terms.h.
  std::map<std::string, std::string> terms;
  int min_world_size = 0;  // 0: world_size
  std::string mesh;        // as base/mesh.h writes it; empty: there is none

  int MinWorldSize() const {
    return min_world_size == 0 ? world_size : min_world_size;
  }
};

// A worker that holds a rank in a generation.
struct Member {
  WorkerIdentity identity;
  Incarnation incarnation;
  int rank = 0;
  int local_rank = 0;
  std::string host;
  std::string address;
  std::vector<std::string> topology;
  // In the mesh of its job, for display: "dp 1, shard 0"; empty: it has none.
  std::string coordinates;

  // "dp 1, shard 0; host-a/2", or without a mesh "host-a/2", for display.
  std::string Place() const;
  // "rank 2 (host-a/2, incarnation 3f..)", for display; with the coordinates
  // where there is a mesh, and the host where the node has another name.
  std::string ToString() const;
};

// A member of the last generation that is not in this one.
struct LostMember {
  Member member;
  std::string reason;
  bool left = false;  // cleanly
  double error_norm = 0;
  int64_t error_step = 0;
};

// What a member reports of a worker that waits, to which it sends its state.
struct NewcomerReport {
  Incarnation incarnation;
  bool settled = false;  // the regroup need not wait for it any longer
  std::string damage;    // of what was sent, a sentence; empty: none
};

// What a worker reports with each heartbeat.
struct Progress {
  int64_t step = 0;
  int64_t collective_sequence = 0;
  int64_t gradient_bytes = 0;
  int64_t payload_bytes = 0;
  int64_t wire_bytes = 0;
  int64_t micro_batches = 0;
  int64_t rounds = 0;
  int bucket = 0;
  std::string activity;
  double error_norm = 0;
  int64_t error_step = 0;  // 0: error_norm is not known
  std::optional<PipelinePlace> pipeline;
  absl::Duration waiting;   // for others, while nothing has moved
  absl::Duration interval;  // of its heartbeats; 0: not known
  std::vector<NewcomerReport> newcomers;

  // Returns whether the worker has made no progress since.
  bool SameWork(const Progress& other) const {
    return step == other.step &&
           collective_sequence == other.collective_sequence &&
           micro_batches == other.micro_batches && rounds == other.rounds &&
           bucket == other.bucket && SamePlace(other);
  }

 private:
  bool SamePlace(const Progress& other) const {
    if (!pipeline.has_value() || !other.pipeline.has_value()) {
      return pipeline.has_value() == other.pipeline.has_value();
    }
    return pipeline->step == other.pipeline->step &&
           pipeline->action == other.pipeline->action;
  }
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MEMBER_H_
