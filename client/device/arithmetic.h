#ifndef COXSWAIN_CLIENT_DEVICE_ARITHMETIC_H_
#define COXSWAIN_CLIENT_DEVICE_ARITHMETIC_H_

#include <cstdint>

#include "base/element_type.h"
#include "client/device/arithmetic_programs.h"
#include "client/device/launch.h"

namespace coxswain {

// What the reducer computes on gradients that lie on a GPU: the same bits as
// client/reduce/gradient_statistics.h computes on the CPU. Called by the
// reducer, for float32, float64, float16 and bfloat16.
//
// These enqueue and return; errors stay in the target. Memory is the device's,
// aligned as its elements are, and in use until the stream has run what was
// enqueued. Thread-safe for different targets.

// Computes out = in * factor, in double for float64 and in float otherwise,
// rounded to nearest even. `out` is `in` or does not overlap. One launch. Bytes
// moved: one read and one write of each element.
void ScaleOnDevice(LaunchTarget* target, ElementType type, const void* in,
                   void* out, int64_t count, double factor);

// Computes to += from, in double for float64 and in float otherwise, rounded to
// nearest even. They do not overlap. One launch. Bytes moved: two reads and one
// write of each element.
void AddOnDevice(LaunchTarget* target, ElementType type, const void* from,
                 void* to, int64_t count);

// Of a run of elements. Sums of squares are formed in double precision in an
// order that is fixed; elements that are infinite or NaN are counted, and are
// in the sum too. Which NaN a sum is differs between machines.
using DeviceStatistics = arithmetic::Statistics;

// Computes results[r] of the elements [begin[r], begin[r + 1]) of `values`, for
// r from 0 to runs - 1. `begin` is in the host's memory, ascends and is read at
// once. `scratch` has ScratchForMeasure elements; calls on one stream may share
// it. Two launches for every 96 runs; one read of each element.
void MeasureOnDevice(LaunchTarget* target, ElementType type, const void* values,
                     const int64_t* begin, int runs, DeviceStatistics* scratch,
                     DeviceStatistics* results);
int64_t ScratchForMeasure(const int64_t* begin, int runs);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_ARITHMETIC_H_
