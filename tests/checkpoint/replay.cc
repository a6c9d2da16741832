#include "tests/checkpoint/replay.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "client/reduce/bucket_layout.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

constexpr int kShards = 8;
constexpr uint64_t kStream = 91;

double OnGrid(double value) {
  return std::round(std::min(std::max(value, -15.0), 15.0) * 0x1p12) * 0x1p-12;
}

// Of a matrix, or what may be seen as one, three directions of falling weight;
// of a vector, a vector.
Gradients SharedSignal(const std::vector<ParameterSpec>& parameters) {
  Gradients signal;
  for (const ParameterSpec& parameter : parameters) {
    const CounterRandom random(kStream, StableHash(parameter.name));
    const int64_t rows = parameter.shape.empty() ? 1 : parameter.shape[0];
    const int64_t columns = rows > 0 ? parameter.count() / rows : 0;
    std::vector<double>& values = signal.emplace_back();
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        double& value = values.emplace_back(0.0);
        for (const uint64_t k : {0u, 1u, 2u}) {
          const auto row = static_cast<uint64_t>(i);
          const auto column = static_cast<uint64_t>(j);
          value += std::pow(0.5, k) * random.Normal(1000 * k + row) *
                   random.Normal(1000 * (k + 3) + column);
        }
      }
    }
  }
  return signal;
}

Gradients ShardGradients(const std::vector<ParameterSpec>& parameters,
                         const Gradients& shared, int shard, int64_t step) {
  Gradients gradients = NormalGradients(parameters, kStream, shard, step);
  for (size_t p = 0; p < gradients.size(); ++p) {
    for (size_t i = 0; i < gradients[p].size(); ++i) {
      double& value = gradients[p][i];
      value = OnGrid(shared[p].empty() ? value : value + shared[p][i]);
    }
  }
  return gradients;
}

std::vector<Gradients> Compute(const std::vector<ParameterSpec>& parameters,
                               Signal signal, int size, int64_t step) {
  std::vector<Gradients> local;
  const int each = kShards / size;
  const Gradients shared = signal == Signal::kShared
                               ? SharedSignal(parameters)
                               : Gradients(parameters.size());
  for (int rank = 0; rank < size; ++rank) {
    Gradients& own = local.emplace_back();
    for (int shard = rank * each; shard < (rank + 1) * each; ++shard) {
      AddTo(own, ShardGradients(parameters, shared, shard, step), 1.0 / each);
    }
  }
  return local;
}

}  // namespace

std::vector<ParameterSpec> ResumeModel(DType dtype) {
  const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
      {"conv.weight", {12, 4, 3, 3}},
      {"conv.bias", {12}},
      {"scale", {}},
      {"wide.weight", {16, 40}},
      {"tall.weight", {40, 16}},
      {"none", {0, 5}},
      {"square.weight", {24, 24}},
      {"square.bias", {24}},
      {"head.weight", {10, 24}},
      {"head.bias", {10}}};
  std::vector<ParameterSpec> parameters;
  for (const auto& [name, shape] : shapes) {
    ParameterSpec parameter;
    parameter.name = name;
    parameter.shape = shape;
    parameter.dtype = dtype;
    parameters.push_back(parameter);
  }
  return parameters;
}

HookWorld::Buckets BucketsOf(const std::vector<ParameterSpec>& parameters,
                             int64_t bytes) {
  BucketPlanOptions options;
  options.first_bucket_bytes = bytes;
  options.bucket_bytes = bytes;
  const auto plan = PlanBuckets(options, parameters);
  EXPECT_TRUE(plan.ok()) << plan.status();
  HookWorld::Buckets buckets;
  for (const Bucket& bucket : *plan) {
    std::vector<int>& numbers = buckets.emplace_back();
    for (const GradientSlot& slot : bucket.gradients) {
      numbers.push_back(slot.parameter);
    }
  }
  return buckets;
}

const std::vector<Gradients>& Replayed(
    const std::vector<ParameterSpec>& parameters, Signal signal, int size,
    int64_t step) {
  using Key = std::tuple<std::string, Signal, int, int64_t>;
  static auto* all = new std::map<Key, std::vector<Gradients>>;
  std::string model;
  for (const ParameterSpec& parameter : parameters) {
    absl::StrAppend(&model, parameter.name, " ",
                    absl::StrJoin(parameter.shape, ","), "\n");
  }
  auto& local = (*all)[{model, signal, size, step}];
  if (local.empty()) local = Compute(parameters, signal, size, step);
  return local;
}

double WorstGroup(const Gradients& a, const Gradients& b,
                  const std::vector<std::vector<int>>& groups) {
  double worst = 0;
  for (const std::vector<int>& group : groups) {
    Gradients ours, theirs;
    for (const int number : group) {
      ours.push_back(a[static_cast<size_t>(number)]);
      theirs.push_back(b[static_cast<size_t>(number)]);
    }
    worst = std::max(worst, RelativeDifference(ours, theirs));
  }
  return worst;
}

}  // namespace coxswain
