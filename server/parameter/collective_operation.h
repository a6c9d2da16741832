#ifndef COXSWAIN_SERVER_PARAMETER_COLLECTIVE_OPERATION_H_
#define COXSWAIN_SERVER_PARAMETER_COLLECTIVE_OPERATION_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/parameter/aggregate.h"
#include "server/parameter/parameter_limits.h"

namespace coxswain::server {

// `count` runs of `bytes`, `stride` apart, from `offset` on.
struct PullRange {
  int64_t offset = 0;
  int64_t bytes = 0;
  int64_t stride = 0;
  int64_t count = 0;

  bool empty() const { return bytes == 0 || count == 0; }
};

// What one rank contributes to a tensor of its group, and what it asks for of
// it.
struct CollectiveOperation {
  uint64_t id = 0;   // of this rank's operations; they rise
  std::string name;  // of the tensor
  int64_t version = 0;
  Reduction reduction = Reduction::kSet;
  std::string dtype;
  int64_t bytes = 0;  // of each part
  int root = -1;      // whose part it is; -1: each rank has one
  int peer = -1;      // the only one besides root that takes part; -1: all do
  std::string what;   // for messages
  PullRange range;
  absl::Duration timeout;

  // Fails with INVALID_ARGUMENT or RESOURCE_EXHAUSTED, for a group of this
  // size.
  absl::Status Check(int group_size, const ParameterLimits& limits) const;
  TensorSpec SpecFor(int group_size) const;

  bool TakesPart(int rank) const {
    return peer < 0 || rank == peer || rank == root;
  }
  bool Contributes(int rank) const { return root < 0 || rank == root; }
  int PartOf(int rank) const { return root < 0 ? rank : 0; }
  // Returns whether both declare the tensor alike, as they must.
  bool AgreesWith(const CollectiveOperation& other) const;
  std::string ToString() const;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_COLLECTIVE_OPERATION_H_
