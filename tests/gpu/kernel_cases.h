#ifndef COXSWAIN_TESTS_GPU_KERNEL_CASES_H_
#define COXSWAIN_TESTS_GPU_KERNEL_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "hooks/kernels/cuda/low_rank.h"
#include "tests/gpu/kernel_case.h"

// Cases of each group of kernels, for CasesToCheck and CasesToTime. What is
// timed is made by the same functions as what is checked.

namespace coxswain::gpu {

// How an array of elements is laid out.
struct Elements {
  ElementType type = ElementType::kFloat32;
  int64_t count = 0;
  int64_t shift = 0;
  Fill fill = Fill::kRandom;
};

Content ContentOf(ElementType type);
std::string NameOf(const std::string& kernel, const Elements& elements);
// Returns memory of elements of any type.
Array<unsigned char> AddElements(Case* one, const Elements& elements);
inline bool IsWide(ElementType type) {
  return type == ElementType::kFloat32 || type == ElementType::kFloat64;
}

// hooks/kernels/cuda/elementwise.h. `other`: the type on the narrow side.
Case NarrowCase(const Elements& elements, ElementType other, int divisor);
Case WidenCase(const Elements& elements, ElementType other);
Case DivideCase(const Elements& elements);
Case AddCase(const Elements& elements);
Case CopyCase(const Elements& elements);
Case FillNanCase(const Elements& elements);
Case CountNonFiniteCase(const Elements& elements);

// client/device/arithmetic.h
Case ScaleCase(const Elements& elements);
Case MeasureCase(const Elements& elements);

// hooks/kernels/cuda/quantise.h, blocks of `size`.
Case QuantiseCase(const Elements& elements, int64_t size);
Case QuantiseMeanCase(const Elements& elements, int64_t size, int ranks);
Case DequantiseCase(const Elements& elements, int64_t size);
Case FoldCase(const Elements& elements);
Case FindNonFiniteCase(const Elements& elements);

// hooks/kernels/cuda/low_rank.h: one step but for the collectives, with these
// parts of it.
struct LowRankParts {
  bool take = true;
  bool project = true;
  bool finish = true;
};
Case LowRankCase(const std::string& name, ElementType gradients, bool wide,
                 const std::vector<LowRankShape>& shapes,
                 const std::vector<int64_t>& raws,
                 const LowRankParts& parts = {});

// hooks/kernels/cuda/orthogonalise.h
Case OrthogonaliseCase(bool wide, bool drawn,
                       const std::vector<LowRankShape>& shapes);

}  // namespace coxswain::gpu

#endif  // COXSWAIN_TESTS_GPU_KERNEL_CASES_H_
