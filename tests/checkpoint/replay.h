#ifndef COXSWAIN_TESTS_CHECKPOINT_REPLAY_H_
#define COXSWAIN_TESTS_CHECKPOINT_REPLAY_H_

#include <cstdint>
#include <vector>

#include "client/device/tensor.h"
#include "client/reduce/bucket.h"
#include "tests/conformance/hook_world.h"

// What the tests of this folder train: a model, and gradients that can be
// replayed on another number of ranks.

namespace coxswain {

// Returns a small network: a convolution, matrices wide and tall, vectors, a
// scalar, an empty tensor.
std::vector<ParameterSpec> ResumeModel(DType dtype);

// Returns buckets of at least this many bytes, as a reducer divides them.
HookWorld::Buckets BucketsOf(const std::vector<ParameterSpec>& parameters,
                             int64_t bytes);

// What the gradients of a model look like.
enum class Signal {
  // As in training: some directions that all shards share in all steps, and
  // noise on top.
  kShared,
  // Noise alone. No direction stands out, so that a power iteration enlarges
  // each rounding by about 1.7 a step.
  kNone,
};

// Returns the gradients of a step, by rank, of 1, 2, 4 or 8 ranks. A step has
// the gradients of 8 shards of data; a rank of W holds the mean over its 8 / W
// of them, so that the mean over the ranks is the same for each W, to the bit:
// all values are multiples of 2^-12 below 16, and their means fit a float32.
// Computed once for each size and step; call it from one thread.
const std::vector<Gradients>& Replayed(
    const std::vector<ParameterSpec>& parameters, Signal signal, int size,
    int64_t step);

// Returns the largest |a - b| / |b| of one of these groups of parameters,
// Euclidean; of a group whose b is zero, |a - b|.
double WorstGroup(const Gradients& a, const Gradients& b,
                  const std::vector<std::vector<int>>& groups);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CHECKPOINT_REPLAY_H_
