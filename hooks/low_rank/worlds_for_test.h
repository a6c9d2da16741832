#ifndef COXSWAIN_HOOKS_LOW_RANK_WORLDS_FOR_TEST_H_
#define COXSWAIN_HOOKS_LOW_RANK_WORLDS_FOR_TEST_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/hook_world.h"

namespace coxswain {

// For the tests of this folder.

inline ParameterSpec Parameter(std::string name, std::vector<int64_t> shape,
                               DType dtype = DType::kFloat64) {
  ParameterSpec parameter;
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  parameter.dtype = dtype;
  return parameter;
}

// Each rank's gradients of a step.
inline std::vector<Gradients> Local(
    const std::vector<ParameterSpec>& parameters, int size, int64_t step,
    uint64_t stream = 2) {
  std::vector<Gradients> local;
  for (int rank = 0; rank < size; ++rank) {
    local.push_back(NormalGradients(parameters, stream, rank, step));
  }
  return local;
}

// A world of a hook whose start_step is 2, after those two steps.
inline HookWorld Started(const std::string& spec,
                         const std::vector<ParameterSpec>& parameters, int size,
                         HookWorld::Buckets buckets = {}) {
  HookWorld world(spec, parameters, size, std::move(buckets));
  world.Step(Local(parameters, size, 0, 1));
  world.Step(Local(parameters, size, 1, 1));
  return world;
}

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_WORLDS_FOR_TEST_H_
