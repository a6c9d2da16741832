#ifndef COXSWAIN_TESTS_GOLDEN_GOLDEN_INPUTS_H_
#define COXSWAIN_TESTS_GOLDEN_GOLDEN_INPUTS_H_

#include <cstdint>
#include <vector>

#include "client/reduce/bucket.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {

// The model and the inputs of the golden cases, as inputs.py has them, bit by
// bit. Behind PyTorch's parameters, the model has a scalar and an empty
// tensor, which PyTorch's hooks cannot take and no golden file holds.

// Returns values uniform over the multiples of 2^-26 in [-2^-3, 2^-3), exact in
// float32; a pure function of its arguments.
std::vector<double> GoldenUniform(uint64_t stream, uint64_t step, uint64_t rank,
                                  uint64_t part, int64_t count);

constexpr size_t kGoldenParameters = 9;  // PyTorch's

std::vector<ParameterSpec> GoldenModel();
HookWorld::Buckets GoldenBuckets();

// Returns the indices of the parameters in the cases of parameter averaging.
const std::vector<size_t>& AveragedParameters();

// Returns rank `rank`'s gradients in a step, of all the model's parameters.
Gradients GoldenGradients(int64_t step, int rank);
std::vector<Gradients> GoldenGradientsOfRanks(int64_t step, int ranks);
// Returns the parameters with which the cases of parameter averaging start, on
// all ranks.
Gradients InitialParameters();

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_GOLDEN_GOLDEN_INPUTS_H_
