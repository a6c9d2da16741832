#ifndef COXSWAIN_TRAIN_TRAINED_MODEL_H_
#define COXSWAIN_TRAIN_TRAINED_MODEL_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/device/tensor.h"
#include "client/reduce/bucket.h"
#include "client/resume/program_checkpoint.h"
#include "train/train.h"

namespace coxswain {

// What Train is given, in the words of the rest of the library.

// Returns what the manifest and the reducer know of the parameters. Fails with
// INVALID_ARGUMENT, naming one that makes no sense.
absl::StatusOr<std::vector<ParameterSpec>> DescribeTrained(
    const std::vector<TrainedParameter>& parameters);

// The memory of parameters that DescribeTrained accepts, in their order.
struct TrainedMemory {
  std::vector<Span> values;
  std::vector<Span> gradients;
};
TrainedMemory MemoryOf(const std::vector<TrainedParameter>& parameters);

// Copies elements in the CPU's memory to where there is room for as many.
void CopyElements(const Span& from, void* to);

// Fails with INVALID_ARGUMENT if a function is missing.
absl::Status CheckOptimizer(const TrainedOptimizer& optimizer);

// Returns how the values, and what the optimizer has learned, go into a
// checkpoint and back. Both outlive it.
ProgramCheckpoint::Program ProgramOf(
    const std::vector<TrainedParameter>& parameters,
    const TrainedOptimizer& optimizer);

}  // namespace coxswain

#endif  // COXSWAIN_TRAIN_TRAINED_MODEL_H_
