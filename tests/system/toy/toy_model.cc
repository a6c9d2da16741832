#include "tests/system/toy/toy_model.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace coxswain {
namespace {

constexpr int kInputs = 64;
constexpr int kOutputs = 32;
constexpr double kLearningRate = 0.05;

enum Seed : uint64_t { kInitialSeed = 1, kDataSeed, kReplaySeed };

template <typename T>
T* As(const Span& span) {
  return static_cast<T*>(span.data);
}

// Calls `body(i, value)` for each element, as a double that it may change.
template <typename Body>
void ForEach(const Span& span, Body body) {
  for (int64_t i = 0; i < span.count; ++i) {
    if (span.dtype == DType::kFloat64) {
      body(i, As<double>(span)[i]);
    } else {
      double value = As<float>(span)[i];
      body(i, value);
      As<float>(span)[i] = static_cast<float>(value);
    }
  }
}

}  // namespace

ToyModel::ToyModel(const ToyModelOptions& options) : options_(options) {
  COXSWAIN_CHECK(options.dtype == DType::kFloat32 ||
                 options.dtype == DType::kFloat64);
  Add("layer1.weight", {options.hidden, kInputs});
  Add("layer1.bias", {options.hidden});
  Add("layer2.weight", {kOutputs, options.hidden});
  Add("layer2.bias", {kOutputs});
  if (options.extra_parameter) Add("extra.scale", {3});
}

void ToyModel::Add(std::string name, std::vector<int64_t> shape) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  spec.dtype = options_.dtype;
  const int index = static_cast<int>(specs_.size());
  const size_t bytes = spec.count() * SizeOf(spec.dtype);
  specs_.push_back(std::move(spec));
  parameters_.emplace_back(bytes);
  gradients_.emplace_back(bytes);
  const CounterRandom random(kInitialSeed, index);
  ForEach(Parameter(index),
          [&](int64_t i, double& value) { value = 0.1 * random.Normal(i); });
}

Span ToyModel::Whole(int index, Memory* memory) {
  Span span;
  span.data = (*memory)[index].data();
  span.count = specs_[index].count();
  span.dtype = options_.dtype;
  return span;
}

void ToyModel::ClearGradients() {
  for (auto& gradient : gradients_) {
    std::memset(gradient.data(), 0, gradient.size());
  }
}

void ToyModel::AddGradients(const ToyBatch& batch) {
  if (options_.dtype == DType::kFloat64) {
    AddGradientsOf<double>(batch);
  } else {
    AddGradientsOf<float>(batch);
  }
}

void ToyModel::ScaleGradients(double factor) {
  for (size_t p = 0; p < specs_.size(); ++p) {
    ForEach(Gradient(p), [&](int64_t, double& value) { value *= factor; });
  }
}

void ToyModel::FlipBit() { parameters_[0][1] ^= 64; }

void ToyModel::SpoilGradients() {
  ForEach(Gradient(0), [](int64_t i, double& value) {
    if (i == 0) value = std::nan("");
  });
}

bool ToyModel::GradientsAreFinite() {
  bool finite = true;
  for (size_t p = 0; p < specs_.size(); ++p) {
    ForEach(Gradient(p), [&](int64_t, double& value) {
      finite = finite && std::isfinite(value);
    });
  }
  return finite;
}

template <typename T>
void ToyModel::AddGradientsOf(const ToyBatch& batch) {
  const int hidden = options_.hidden;
  const T* w1 = As<T>(Parameter(0));
  const T* b1 = As<T>(Parameter(1));
  const T* w2 = As<T>(Parameter(2));
  const T* b2 = As<T>(Parameter(3));
  T* dw1 = As<T>(Gradient(0));
  T* db1 = As<T>(Gradient(1));
  T* dw2 = As<T>(Gradient(2));
  T* db2 = As<T>(Gradient(3));
  const CounterRandom random(
      kDataSeed,
      Mix64(batch.step) + Mix64(batch.micro * 4096 + batch.rank + 1));
  const T scale = static_cast<T>(batch.sample_scale);
  std::vector<T> x(kInputs), h(hidden), dh(hidden);
  for (int sample = 0; sample < batch.samples; ++sample) {
    for (int i = 0; i < kInputs; ++i) {
      x[i] = static_cast<T>(2 * random.Uniform(sample * kInputs + i) - 1);
    }
    for (int j = 0; j < hidden; ++j) {
      T sum = b1[j];
      for (int i = 0; i < kInputs; ++i) sum += w1[j * kInputs + i] * x[i];
      h[j] = std::tanh(sum);
      dh[j] = 0;
    }
    for (int k = 0; k < kOutputs; ++k) {
      T y = b2[k];
      for (int j = 0; j < hidden; ++j) y += w2[k * hidden + j] * h[j];
      const T error = (y - x[k]) * scale;
      db2[k] += error;
      for (int j = 0; j < hidden; ++j) {
        dw2[k * hidden + j] += error * h[j];
        dh[j] += error * w2[k * hidden + j];
      }
    }
    for (int j = 0; j < hidden; ++j) {
      const T error = dh[j] * (1 - h[j] * h[j]);
      db1[j] += error;
      for (int i = 0; i < kInputs; ++i) dw1[j * kInputs + i] += error * x[i];
    }
  }
}

void ToyModel::ReplayGradients(int64_t step, const ToyPlace& place) {
  // What rank r adds, the next rank takes away again: the sum is zero.
  const int next = (place.rank + 1) % place.world_size;
  for (size_t p = 0; p < specs_.size(); ++p) {
    const auto stream = [&](int rank) {
      return CounterRandom(kReplaySeed, Mix64(step * 64 + p) + Mix64(rank + 1));
    };
    const CounterRandom common = stream(-1);
    const CounterRandom mine = stream(place.rank);
    const CounterRandom taken = stream(next);
    ForEach(Gradient(p), [&](int64_t i, double& value) {
      value = common.Normal(i);
      if (place.world_size > 1) {
        value += 0.5 * (mine.Normal(i) - taken.Normal(i));
      }
    });
  }
}

void ToyModel::Descend(int index, const Span& gradient) {
  const Span parameter = Parameter(index);
  if (options_.dtype == DType::kFloat64) {
    for (int64_t i = 0; i < parameter.count; ++i) {
      As<double>(parameter)[i] -= kLearningRate * As<double>(gradient)[i];
    }
  } else {
    for (int64_t i = 0; i < parameter.count; ++i) {
      As<float>(parameter)[i] -=
          static_cast<float>(kLearningRate) * As<float>(gradient)[i];
    }
  }
}

std::string ToyModel::Bytes() const {
  std::string bytes;
  for (const auto& parameter : parameters_) {
    bytes.append(parameter.begin(), parameter.end());
  }
  return bytes;
}

bool ToyModel::SetBytes(const std::string& bytes) {
  if (bytes.size() != Bytes().size()) return false;
  size_t offset = 0;
  for (auto& parameter : parameters_) {
    std::memcpy(parameter.data(), bytes.data() + offset, parameter.size());
    offset += parameter.size();
  }
  return true;
}

}  // namespace coxswain
