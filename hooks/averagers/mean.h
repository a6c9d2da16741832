#ifndef COXSWAIN_HOOKS_AVERAGERS_MEAN_H_
#define COXSWAIN_HOOKS_AVERAGERS_MEAN_H_

#include <vector>

#include "absl/status/status.h"
#include "client/comm/communicator.h"
#include "client/device/tensor.h"
#include "hooks/scratch.h"

namespace coxswain {

// Replaces values by their mean over the ranks of `communicator`, the same
// bits on all of them. Collective; blocks.
//
// Each rank divides by the number of ranks, then they are summed: both in
// float64 for float64 values and in float32 for all others, so that 16-bit
// values are rounded once, at the end. With one rank nothing changes.
//
// All values travel packed, in all-reduces of at most kMeanChunk elements, two
// of them in flight: 4 bytes an element, or 8 of float64. Scratch: as much
// again, of at most two chunks.
//
// The types are floating point and the memory is the CPU's. Errors are the
// communicator's; the values are then a mixture of no use.
absl::Status AverageOver(Communicator& communicator,
                         const std::vector<Span>& values, ScratchPool& scratch);

inline constexpr int64_t kMeanChunk = int64_t{1} << 22;

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_AVERAGERS_MEAN_H_
