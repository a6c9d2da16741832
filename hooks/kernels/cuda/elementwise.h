#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_ELEMENTWISE_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_ELEMENTWISE_H_

#include <cstdint>

#include "base/element_type.h"
#include "client/device/launch.h"
#include "hooks/kernels/cuda/elementwise_programs.h"

// Arithmetic of the hooks on arrays in a GPU's memory, element by element: as
// hooks/kernels/elementwise.h does it on the CPU, and with the same bits but
// for the payloads of NaNs. Each function enqueues one launch on the target's
// stream (two for the count, none for 0 elements) and returns; errors stay in
// the target. For the hooks' device paths, by way of hooks/device.
//
// Arrays do not overlap unless they are the same one. Pointers are multiples of
// their element's size; 16 bytes are moved at a time in any case on the output,
// and on the input too where it is as many elements off a multiple of 16 bytes
// as the output is, up to a difference in their sizes. Any count of elements
// up to 2^62.
//
// Bytes that an element costs: in one read and one write, given with each.

namespace coxswain {

// out[i] = narrow(in[i] * factor), which is of `from`'s type: kFloat32 or
// kFloat64; `to` is kFloat16 or kBFloat16. 4 + 2 bytes from float32, 8 + 2 from
// float64. The reciprocal of an integer comes out as divided in that type.
void EnqueueNarrow(LaunchTarget* target, ElementType from, const void* in,
                   ElementType to, uint16_t* out, int64_t count,
                   double factor = 1);

// out[i] = in[i], exactly. 2 + 4 bytes to float32, 2 + 8 to float64.
void EnqueueWiden(LaunchTarget* target, ElementType from, const uint16_t* in,
                  ElementType to, void* out, int64_t count);

// values[i] /= divisor, of any of the four types, 16-bit ones in float32.
// Reads and writes each once.
void EnqueueDivide(LaunchTarget* target, ElementType type, void* values,
                   int64_t count, int divisor);

// values[i] += other[i], of float32 or float64. Reads both, writes one.
void EnqueueAdd(LaunchTarget* target, ElementType type, void* values,
                const void* other, int64_t count);

// out[i] = in[i], of any of the four types.
void EnqueueCopy(LaunchTarget* target, ElementType type, const void* in,
                 void* out, int64_t count);

// values[i] = NaN, of any of the four types.
void EnqueueFillNan(LaunchTarget* target, ElementType type, void* values,
                    int64_t count);

// counts[r] = how many elements of ranges[r] are infinite or not a number, for
// each of `range_count` ranges of `values`, which is of any of the four types.
// All pointers are memory of the device: `partials` has
// CountNonFinitePartials(range_count) numbers, `ranges` stays as it is until
// this has run. Reads each element once. Sums are of integers, so in any order.
void EnqueueCountNonFinite(LaunchTarget* target, ElementType type,
                           const void* values, const ElementRange* ranges,
                           int64_t range_count, int64_t* partials,
                           int64_t* counts);
int64_t CountNonFinitePartials(int64_t range_count);

// How an array is cut for a program whose groups have `group` elements; null
// inputs do not count. For the functions above and their test.
Stretch MakeStretch(int64_t count, int group, uintptr_t out, size_t out_size,
                    uintptr_t in, size_t in_size, uintptr_t other);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_ELEMENTWISE_H_
