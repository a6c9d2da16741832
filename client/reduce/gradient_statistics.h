#ifndef COXSWAIN_CLIENT_REDUCE_GRADIENT_STATISTICS_H_
#define COXSWAIN_CLIENT_REDUCE_GRADIENT_STATISTICS_H_

#include <cstdint>

#include "client/device/tensor.h"

namespace coxswain {

// Of a run of elements. Sums of squares are formed in double precision, in
// lanes whose number and order are fixed: equal input gives equal bits on all
// machines. Infinite and NaN elements are counted, and are in the sum too.
struct GradientStatistics {
  double sum_of_squares = 0;
  int64_t non_finite = 0;

  void Add(const GradientStatistics& other) {
    sum_of_squares += other.sum_of_squares;
    non_finite += other.non_finite;
  }
};

// The spans are of float32, float64, float16 or bfloat16, in the CPU's memory.
// Called by the reducer, and by programs that sum up gradients for it.
// Thread-safe.

// Returns the statistics of `values`, in one pass that reads.
GradientStatistics Measure(const Span& values);

// Copies values to out and returns their statistics, in one pass. `out` holds
// as many elements of the same type, and does not overlap.
GradientStatistics CopyAndMeasure(const Span& values, void* out);

// Computes values *= factor, in double for float64 and in float otherwise,
// rounded to nearest even.
void Scale(const Span& values, double factor);
// Computes out = values * factor, likewise.
void CopyScaled(const Span& values, double factor, void* out);
// Computes out += values * factor, likewise: a 16-bit sum is rounded once.
// `out` holds as many elements of the same type, and does not overlap.
void AddScaled(const Span& values, double factor, void* out);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_GRADIENT_STATISTICS_H_
