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

// Returns a world of a hook whose start_step is 2, after those two steps.
inline HookWorld Started(const std::string& spec,
                         const std::vector<ParameterSpec>& parameters, int size,
                         HookWorld::Buckets buckets = {}) {
  HookWorld world(spec, parameters, size, std::move(buckets));
  world.Step(Local(parameters, size, 0, 1));
  world.Step(Local(parameters, size, 1, 1));
  return world;
}

// What a step hands to the network.
struct Traffic {
  int64_t collectives = 0;
  int64_t payload_bytes = 0;
};

inline Traffic TrafficOfStep(HookWorld& world,
                             const std::vector<Gradients>& local) {
  const Traffic before = {world.collectives(), world.payload_bytes()};
  world.Step(local);
  return {world.collectives() - before.collectives,
          world.payload_bytes() - before.payload_bytes};
}

// Returns a model for three buckets: matrices, two of them of one shape, among
// vectors and a scalar; one matrix alone; vectors alone.
inline std::vector<ParameterSpec> ThreeBucketsOfParameters() {
  return {Parameter("b", {7}),        Parameter("w", {16, 24}),
          Parameter("s", {}),         Parameter("same", {16, 24}),
          Parameter("v", {20, 4, 5}), Parameter("alone", {12, 18}),
          Parameter("only", {30}),    Parameter("vectors", {3})};
}
inline HookWorld::Buckets ThreeBuckets() {
  return {{0, 1, 2, 3, 4}, {5}, {6, 7}};
}

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_WORLDS_FOR_TEST_H_
