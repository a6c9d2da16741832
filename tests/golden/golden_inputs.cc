#include "tests/golden/golden_inputs.h"

#include "base/random.h"

namespace coxswain {
namespace {

constexpr uint64_t kGradients = 1;
constexpr uint64_t kInitial = 2;

// The gradients of this one are subnormal in float16.
constexpr size_t kSmall = 1;
constexpr double kSmallScale = 0x1p-14;

ParameterSpec Parameter(const char* name, std::vector<int64_t> shape) {
  ParameterSpec parameter;
  parameter.name = name;
  parameter.shape = std::move(shape);
  return parameter;
}

Gradients AllValues(uint64_t stream, int64_t step, int rank) {
  Gradients all;
  for (const ParameterSpec& parameter : GoldenModel()) {
    all.push_back(GoldenUniform(stream, static_cast<uint64_t>(step),
                                static_cast<uint64_t>(rank), all.size(),
                                parameter.count()));
  }
  return all;
}

}  // namespace

std::vector<double> GoldenUniform(uint64_t stream, uint64_t step, uint64_t rank,
                                  uint64_t part, int64_t count) {
  uint64_t key = 0;
  for (const uint64_t number : {stream, step, rank, part}) {
    key = Mix64(key + number);
  }
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = Mix64(key + static_cast<uint64_t>(i));
    values.push_back((static_cast<double>(bits >> 40) - 0x1p23) * 0x1p-26);
  }
  return values;
}

std::vector<ParameterSpec> GoldenModel() {
  return {Parameter("conv.weight", {6, 3, 3, 3}),
          Parameter("conv.bias", {12}),
          Parameter("first.weight", {8, 10}),
          Parameter("wide.weight", {18, 15}),
          Parameter("second.weight", {8, 10}),
          Parameter("row.weight", {1, 9}),
          Parameter("column.weight", {7, 1}),
          Parameter("tiny.weight", {2, 2, 2}),
          Parameter("scale", {3}),
          Parameter("scalar", {}),
          Parameter("empty", {0, 5})};
}

HookWorld::Buckets GoldenBuckets() {
  return {{10, 9, 8, 7, 6, 5, 4, 3, 2}, {1, 0}};
}

const std::vector<size_t>& AveragedParameters() {
  static const auto* const averaged = new std::vector<size_t>{1, 2, 5, 6, 7, 8};
  return *averaged;
}

Gradients GoldenGradients(int64_t step, int rank) {
  Gradients gradients = AllValues(kGradients, step, rank);
  for (double& value : gradients[kSmall]) value *= kSmallScale;
  return gradients;
}

std::vector<Gradients> GoldenGradientsOfRanks(int64_t step, int ranks) {
  std::vector<Gradients> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(GoldenGradients(step, rank));
  }
  return all;
}

Gradients InitialParameters() { return AllValues(kInitial, 0, 0); }

}  // namespace coxswain
