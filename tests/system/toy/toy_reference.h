#ifndef COXSWAIN_TESTS_SYSTEM_TOY_TOY_REFERENCE_H_
#define COXSWAIN_TESTS_SYSTEM_TOY_TOY_REFERENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/system/toy/toy_dump.h"
#include "tests/system/toy/toy_model.h"

namespace coxswain {

// What a job of toy workers should do, in one process that exchanges nothing:
// each step is one big batch, the mean over all its samples.
class ToyReference {
 public:
  explicit ToyReference(const ToyModelOptions& options = Float64());

  static ToyModelOptions Float64();

  // Computes the model's gradient over all samples of these batches, in any
  // order.
  void ComputeGradients(std::vector<ToyBatch> batches);
  // Returns the largest relative difference of all parameters from what a job
  // has dumped of `step`; infinite if a parameter is missing.
  double DifferenceFrom(const ToyDump& dump, int64_t step);
  // Makes an optimizer step.
  void Descend();

  // Does all three, for one step after the other from `first_step`; returns the
  // largest difference of all.
  double Follow(const ToyDump& dump, int64_t first_step,
                const std::vector<std::vector<ToyBatch>>& steps);

 private:
  ToyModel model_;
};

// Returns the steps of which a dump holds gradients, in order.
std::vector<int64_t> StepsOf(const ToyDump& dump);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_TOY_TOY_REFERENCE_H_
