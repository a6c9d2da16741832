#ifndef COXSWAIN_CLIENT_COMM_TCP_RING_H_
#define COXSWAIN_CLIENT_COMM_TCP_RING_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/tcp/chunks.h"
#include "client/comm/tcp/data_paths.h"
#include "client/device/tensor.h"

namespace coxswain {

// Each rank receives from the one before it and sends to the one after it, so
// a link carries no more than one rank's traffic. The partial sum of slice r
// begins at rank r + 1, gains a rank's part at each step, and is complete at
// rank r; a gathered slice goes the same way round. A chunk goes on as soon as
// it has arrived, while the rest of its slice still comes. The order of a sum
// is that of the ring, the same for all ranks, as one of them completes it.
struct RingPlan {
  int rank = 0;
  DType dtype = DType::kFloat32;
  ElementOp op = ElementOp::kSum;
  // By rank: what this rank contributes to each slice; empty where nothing is
  // reduced.
  std::vector<Chunked> input;
  // By rank: where each slice ends; empty where nothing is gathered.
  std::vector<Chunked> gathered;
  // Where the sum of this rank's slice ends.
  Chunked result;
  // Whether `input` may be overwritten by partial sums.
  bool in_place = false;
};

// Errors as FlowTransfer's; RESOURCE_EXHAUSTED if there is no memory.
absl::Status RunRingPlan(DataPaths* paths, const RingPlan& plan,
                         Scratch* scratch, absl::Time deadline);

// Copies the root's data to all ranks, each of which passes it on.
absl::Status RunChain(DataPaths* paths, int rank, int root, const Chunked& data,
                      absl::Time deadline);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_RING_H_
