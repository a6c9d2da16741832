#ifndef COXSWAIN_CLIENT_COMM_IN_PROCESS_COLLECTIVE_H_
#define COXSWAIN_CLIENT_COMM_IN_PROCESS_COLLECTIVE_H_

#include <vector>

#include "absl/status/status.h"
#include "client/comm/collective_header.h"
#include "client/device/tensor.h"

namespace coxswain {

// What one rank brings to a collective. In-place kinds use `input` alone;
// without memory in it nothing moves.
struct CollectivePart {
  CollectiveHeader header;
  Span input;
  Span output;
};

// Computes the collective of these parts, one per rank, over shared memory.
// Fails with INVALID_ARGUMENT, with no memory changed, if they do not fit
// together. A pure function of the parts and what they point to.
absl::Status ComputeCollective(const std::vector<const CollectivePart*>& parts);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_IN_PROCESS_COLLECTIVE_H_
