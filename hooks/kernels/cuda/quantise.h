#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_H_

#include <cstdint>
#include <vector>

#include "base/element_type.h"
#include "client/device/launch.h"
#include "hooks/kernels/cuda/quantise_access.h"
#include "hooks/kernels/cuda/quantise_rare_programs.h"
#include "hooks/kernels/quantise.h"

// hooks/kernels/quantise.h for arrays in a GPU's memory: the same formats, the
// same bits (but for the payloads of NaNs), any alignment, and one launch for
// any number of runs. Each function enqueues on the target's stream and
// returns; errors stay in the target. Nothing is launched for no elements.
//
// Runs stand in a table in the memory of the device, which the caller copies
// there and leaves alone until the launch has run. Whole blocks that lie in one
// run, with `size` a multiple of 4 and memory that is aligned alike, move four
// elements at a time: runs that follow each other in memory are best placed so
// that QuantiseTable can join them.
//
// Bytes that a float32 element costs: Quantise 4 + 4 read and 4 + 1 written;
// QuantiseMean `ranks` + 4 read and 4 + 1 written; Dequantise 1 read and 4
// written; each once, besides 4 bytes of a block's scale.

namespace coxswain {

// Returns the table of these runs: those that are empty left out, those that
// follow each other in all of their memory joined, then the end. A remainder
// may be the error itself.
template <typename T>
std::vector<QuantiseEntry> QuantiseTable(
    const std::vector<QuantiseRun<T>>& runs);

// A table of this many entries, the end not counted, on the device.
struct QuantiseRuns {
  const QuantiseEntry* table = nullptr;
  int64_t entries = 0;
};

// T is float or double; `type` that of all gradients. Sets *clear to 0 unless
// it is null.
template <typename T>
void EnqueueQuantise(LaunchTarget* target, QuantiseRuns runs, ElementType type,
                     int64_t size, int64_t blocks, uint8_t* out,
                     int32_t* clear = nullptr);

template <typename T>
void EnqueueQuantiseMean(LaunchTarget* target, const uint8_t* in,
                         int64_t stride, int ranks, QuantiseRuns runs,
                         int64_t size, int64_t blocks, uint8_t* out);

// Leaves `out` alone where *skip, unless null, is not 0.
void EnqueueDequantise(LaunchTarget* target, const uint8_t* in, int64_t size,
                       int64_t count, void* out, ElementType type,
                       const int32_t* skip = nullptr);

// *found = 1 if a block's scale is NaN; otherwise it stays as it is.
void EnqueueFindBadScale(LaunchTarget* target, const uint8_t* in, int64_t size,
                         int64_t blocks, int32_t* found);

// to = local + weight * average of each entry; `count` elements in all. The
// table has an end, as above.
template <typename T>
void EnqueueFold(LaunchTarget* target, const FoldEntry<T>* table,
                 int64_t entries, int64_t count, T weight);

// by_rank[rank] = 1 + the number of the first entry whose gradient has an
// element that is infinite or NaN, or 0; 0 for the other `ranks`. `flags` is
// room for as many numbers as there are entries. Two launches.
void EnqueueFindNonFinite(LaunchTarget* target, QuantiseRuns runs,
                          ElementType type, int rank, int ranks, int32_t* flags,
                          int32_t* by_rank);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_H_
