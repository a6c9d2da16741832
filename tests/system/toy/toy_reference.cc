#include "tests/system/toy/toy_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace coxswain {

ToyReference::ToyReference(const ToyModelOptions& options) : model_(options) {}

ToyModelOptions ToyReference::Float64() {
  ToyModelOptions options;
  options.dtype = DType::kFloat64;
  return options;
}

void ToyReference::ComputeGradients(std::vector<ToyBatch> batches) {
  int samples = 0;
  for (const ToyBatch& batch : batches) samples += batch.samples;
  model_.ClearGradients();
  for (ToyBatch& batch : batches) {
    batch.sample_scale = 1.0 / samples;
    model_.AddGradients(batch);
  }
}

double ToyReference::DifferenceFrom(const ToyDump& dump, int64_t step) {
  double worst = 0;
  for (size_t p = 0; p < model_.specs().size(); ++p) {
    const auto found = dump.find({step, model_.specs()[p].name});
    if (found == dump.end()) return std::numeric_limits<double>::infinity();
    const double difference = RelativeDifference(
        ToDoubles(model_.Gradient(static_cast<int>(p))), found->second);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, difference);
  }
  return worst;
}

void ToyReference::Descend() {
  for (size_t p = 0; p < model_.specs().size(); ++p) {
    const int index = static_cast<int>(p);
    model_.Descend(index, model_.Gradient(index));
  }
}

double ToyReference::Follow(const ToyDump& dump, int64_t first_step,
                            const std::vector<std::vector<ToyBatch>>& steps) {
  double worst = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    ComputeGradients(steps[i]);
    worst = std::max(
        worst, DifferenceFrom(dump, first_step + static_cast<int64_t>(i)));
    Descend();
  }
  return worst;
}

std::vector<int64_t> StepsOf(const ToyDump& dump) {
  std::vector<int64_t> steps;
  for (const auto& [key, values] : dump) {
    if (steps.empty() || steps.back() != key.first) steps.push_back(key.first);
  }
  return steps;
}

}  // namespace coxswain
