#ifndef COXSWAIN_CLIENT_COMM_IN_PROCESS_COLLECTIVE_H_
#define COXSWAIN_CLIENT_COMM_IN_PROCESS_COLLECTIVE_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/comm/communicator.h"
#include "client/comm/tensor.h"

namespace coxswain {

enum class CollectiveKind {
  kAllReduce,
  kBroadcast,
  kBarrier,
  kAllGather,
  kReduceScatter,
  kAllToAll
};
absl::string_view NameOf(CollectiveKind kind);

// What one rank brings to a collective. In-place kinds use `input` alone.
struct CollectivePart {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Span input;
  Span output;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
};

// Computes the collective of these parts, one per rank, over shared memory.
// INVALID_ARGUMENT, and no memory changed, if they do not fit together. A pure
// function of the parts and what they point to.
absl::Status ComputeCollective(const std::vector<const CollectivePart*>& parts);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_IN_PROCESS_COLLECTIVE_H_
