#include "tests/hooks/reference/int8.h"

#include <algorithm>
#include <cmath>

#include "tests/hooks/reference/rounding.h"

namespace coxswain {
namespace reference {

Int8Reference::Int8Reference(DType type, size_t count, size_t ranks,
                             size_t block)
    : type_(type),
      computed_in_(type == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32),
      count_(count),
      block_(block),
      errors_(ranks, std::vector<double>(count, 0.0)),
      average_error_(count, 0.0) {}

double Int8Reference::Rounded(double value) const {
  return RoundTo(computed_in_, value);
}

std::vector<double> Int8Reference::Quantise(std::vector<double>& values) const {
  double largest = 0;
  for (const double x : values) largest = std::max(largest, std::fabs(x));
  double scale = RoundTo(DType::kFloat32, Rounded(largest / 127));
  if (scale < 0x1p-126) scale = 0;
  const double inverse = Rounded(1 / scale);
  std::vector<double> left_out;
  for (double& x : values) {
    const double code = scale == 0 ? 0 : std::nearbyint(Rounded(x * inverse));
    const double worth = Rounded(code * scale);
    left_out.push_back(Rounded(x - worth));
    x = worth;
  }
  return left_out;
}

std::vector<double> Int8Reference::Step(
    const std::vector<std::vector<double>>& local) {
  std::vector<double> result;
  // Slices begin and end with blocks, so which rank owns a block does not
  // matter.
  for (size_t begin = 0; begin < count_; begin += block_) {
    const size_t end = std::min(begin + block_, count_);
    std::vector<double> mean(end - begin, 0.0);
    for (size_t w = 0; w < local.size(); ++w) {
      std::vector<double> x;
      for (size_t i = begin; i < end; ++i) {
        x.push_back(Rounded(local[w][i] + errors_[w][i]));
      }
      const std::vector<double> left_out = Quantise(x);
      std::copy(left_out.begin(), left_out.end(),
                errors_[w].begin() + static_cast<std::ptrdiff_t>(begin));
      for (size_t i = 0; i < x.size(); ++i) mean[i] = Rounded(mean[i] + x[i]);
    }
    const auto ranks = static_cast<double>(local.size());
    for (size_t i = 0; i < mean.size(); ++i) {
      mean[i] = Rounded(Rounded(mean[i] / ranks) + average_error_[begin + i]);
    }
    const std::vector<double> left_out = Quantise(mean);
    std::copy(left_out.begin(), left_out.end(),
              average_error_.begin() + static_cast<std::ptrdiff_t>(begin));
    for (const double value : mean) result.push_back(RoundTo(type_, value));
  }
  return result;
}

std::vector<double> Int8Reference::MeanError() const {
  std::vector<double> mean = average_error_;
  for (size_t i = 0; i < count_; ++i) {
    for (const auto& error : errors_) {
      mean[i] += error[i] / static_cast<double>(errors_.size());
    }
  }
  return mean;
}

}  // namespace reference
}  // namespace coxswain
