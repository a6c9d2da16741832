#ifndef COXSWAIN_CLIENT_COMM_TCP_DIRECT_H_
#define COXSWAIN_CLIENT_COMM_TCP_DIRECT_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/tcp/chunks.h"
#include "client/comm/tcp/data_paths.h"
#include "client/device/tensor.h"

namespace coxswain {

// Each rank with each other one at the same time, in one or two parts:
//
//   parts    this rank sends to[p] to each p. What comes is kept in from[p], or
//            is reduced, a chunk of all ranks at a time and in the order of
//            ranks, with to[rank] to `result`: 16-bit floats are rounded once.
//   gather   this rank sends gathered[rank], which may be the result, to all
//            others, and receives gathered[p] of each p.
//
// A chunk of the result is on its way while others still come. What has not
// been reduced yet is held back at the sender by the connection itself: there
// is space for a few chunks of each rank.
struct DirectPlan {
  int rank = 0;
  DType dtype = DType::kFloat32;
  ElementOp op = ElementOp::kSum;
  int divisor = 1;  // of what is reduced: see ReduceMany
  // By rank; empty where there is no such part.
  std::vector<Chunked> to;
  std::vector<Chunked> from;
  Chunked result;  // of no bytes where nothing is reduced
  std::vector<Chunked> gathered;
};

// Errors as FlowTransfer's; RESOURCE_EXHAUSTED if there is no memory.
absl::Status RunDirectPlan(DataPaths* paths, const DirectPlan& plan,
                           Scratch* scratch, absl::Time deadline);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_DIRECT_H_
