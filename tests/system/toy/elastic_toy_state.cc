#include "tests/system/toy/elastic_toy_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"

namespace coxswain {
namespace {

// Returns a number that looks random: the finaliser of SplitMix64.
uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// Element `at` of sample `sample`'s gradient. See README.md.
double ElementOf(int64_t sample, int64_t at) {
  const uint64_t mixed =
      Mix(Mix(static_cast<uint64_t>(sample)) + static_cast<uint64_t>(at));
  return static_cast<double>(mixed % 9) - 4;
}

double Read(const char* bits, DType dtype, int64_t at) {
  if (dtype == DType::kFloat64) {
    double value = 0;
    std::memcpy(&value, bits + at * 8, 8);
    return value;
  }
  float value = 0;
  std::memcpy(&value, bits + at * 4, 4);
  return value;
}

void Subtract(char* bits, DType dtype, int64_t at, double value) {
  const double result = Read(bits, dtype, at) - value;
  if (dtype == DType::kFloat64) {
    std::memcpy(bits + at * 8, &result, 8);
    return;
  }
  const auto narrow = static_cast<float>(result);
  std::memcpy(bits + at * 4, &narrow, 4);
}

}  // namespace

ElasticToyState::ElasticToyState(DType dtype, int size, int local_batch)
    : dtype_(dtype), local_batch_(local_batch) {
  COXSWAIN_CHECK(dtype == DType::kFloat32 || dtype == DType::kFloat64);
  const int64_t rows = std::max(4, static_cast<int>(std::sqrt(size)));
  const std::vector<std::vector<int64_t>> shapes = {
      {rows, rows}, {rows}, {2 * rows, rows}, {1}, {rows, 3, rows}};
  for (const std::vector<int64_t>& shape : shapes) {
    ParameterSpec spec;
    spec.name = absl::StrCat("p", specs_.size());
    spec.shape = shape;
    spec.dtype = dtype;
    elements_ += spec.count();
    specs_.push_back(spec);
  }
  bits_.resize(static_cast<size_t>(elements_) * SizeOf(dtype), '\0');
}

int64_t ElasticToyState::OffsetOf(int index) const {
  int64_t offset = 0;
  for (int i = 0; i < index; ++i) {
    offset += specs_[static_cast<size_t>(i)].count();
  }
  return offset;
}

std::vector<double> ElasticToyState::SumOf(int64_t first, int64_t count) const {
  std::vector<double> sum(static_cast<size_t>(elements_));
  for (int64_t sample = first; sample < first + count; ++sample) {
    for (int64_t at = 0; at < elements_; ++at) {
      sum[static_cast<size_t>(at)] += ElementOf(sample, at);
    }
  }
  return sum;
}

std::vector<double> ElasticToyState::Gradient(int rank, int world_size) const {
  std::vector<double> sum =
      SumOf(samples_ + int64_t{rank} * local_batch_, local_batch_);
  for (double& value : sum) value *= world_size;
  return sum;
}

void ElasticToyState::Step(const std::vector<Span>& averages,
                           int64_t generation, int world_size) {
  int64_t at = 0;
  for (const Span& average : averages) {
    for (int64_t i = 0; i < average.count; ++i, ++at) {
      Subtract(bits_.data(), dtype_, at,
               Read(static_cast<const char*>(average.data), dtype_, i));
    }
  }
  ++step_;
  samples_ += int64_t{world_size} * local_batch_;
  if (runs_.empty() || runs_.back().generation != generation) {
    runs_.emplace_back();
    runs_.back().generation = generation;
    runs_.back().world_size = world_size;
  }
  ++runs_.back().steps;
}

std::vector<double> ElasticToyState::Values() const {
  std::vector<double> values;
  for (int64_t at = 0; at < elements_; ++at) {
    values.push_back(Read(bits_.data(), dtype_, at));
  }
  return values;
}

std::vector<double> ElasticToyState::Missing() const {
  std::vector<double> missing = SumOf(0, samples_);
  const std::vector<double> values = Values();
  for (size_t i = 0; i < values.size(); ++i) missing[i] += values[i];
  return missing;
}

double ElasticToyState::Distance() const {
  double distance = 0;
  for (const double missing : Missing()) {
    distance = std::max(distance, std::abs(missing));
  }
  return distance;
}

Span ElasticToyState::Parameter(int index) {
  Span span;
  span.data = bits_.data() + OffsetOf(index) * SizeOf(dtype_);
  span.count = specs_[static_cast<size_t>(index)].count();
  span.dtype = dtype_;
  return span;
}

std::vector<Span> ElasticToyState::Tensors() {
  std::vector<Span> tensors;
  for (size_t i = 0; i < specs_.size(); ++i) {
    tensors.push_back(Parameter(static_cast<int>(i)));
  }
  return tensors;
}

absl::StatusOr<std::string> ElasticToyState::Save() {
  std::string text = absl::StrCat(samples_);
  for (const ToyRun& run : runs_) {
    absl::StrAppend(&text, " ", run.generation, ":", run.world_size, ":",
                    run.steps);
  }
  return text;
}

absl::Status ElasticToyState::Load(absl::string_view bytes, int64_t step) {
  const std::vector<std::string> words = absl::StrSplit(bytes, ' ');
  int64_t samples = 0;
  bool good = absl::SimpleAtoi(words[0], &samples);
  std::vector<ToyRun> runs;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(words[i], ':');
    ToyRun run;
    good = good && parts.size() == 3 &&
           absl::SimpleAtoi(parts[0], &run.generation) &&
           absl::SimpleAtoi(parts[1], &run.world_size) &&
           absl::SimpleAtoi(parts[2], &run.steps);
    runs.push_back(run);
  }
  if (!good) {
    return absl::DataLossError(absl::StrCat("no toy's state: ", bytes));
  }
  samples_ = samples;
  runs_ = std::move(runs);
  step_ = step;
  return absl::OkStatus();
}

}  // namespace coxswain
