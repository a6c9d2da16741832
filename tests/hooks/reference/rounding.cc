#include "tests/hooks/reference/rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace coxswain {
namespace reference {
namespace {

struct Format {
  int bits;      // of the significand, the hidden one included
  int smallest;  // exponent of the smallest normal value
  double largest;
};

Format FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return {11, -14, 65504};
    case DType::kBFloat16:
      return {8, -126, std::ldexp(255.0, 120)};
    case DType::kFloat32:
      return {24, -126, std::numeric_limits<float>::max()};
    default:
      COXSWAIN_CHECK(dtype == DType::kFloat64);
      return {53, -1022, std::numeric_limits<double>::max()};
  }
}

}  // namespace

double RoundTo(DType dtype, double value) {
  if (dtype == DType::kFloat64 || !std::isfinite(value) || value == 0) {
    return value;
  }
  const Format format = FormatOf(dtype);
  const int exponent = std::max(std::ilogb(value), format.smallest);
  const double unit = std::ldexp(1.0, exponent - format.bits + 1);
  // The default rounding mode is to nearest, ties to even.
  const double rounded = std::nearbyint(value / unit) * unit;
  if (std::fabs(rounded) <= format.largest) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

Gradients RoundTo(DType dtype, Gradients gradients) {
  for (auto& values : gradients) {
    for (double& value : values) value = RoundTo(dtype, value);
  }
  return gradients;
}

std::vector<Gradients> RoundTo(DType dtype, std::vector<Gradients> all) {
  for (Gradients& one : all) one = RoundTo(dtype, std::move(one));
  return all;
}

Gradients CastReference(const std::vector<Gradients>& local, DType wide,
                        DType narrow, bool divide_first,
                        const std::vector<double>& shares) {
  const auto ranks = static_cast<double>(local.size());
  const DType computed =
      wide == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const auto contribution = [&](size_t rank, double gradient) {
    const double value = RoundTo(wide, gradient);
    if (!shares.empty() && shares[rank] != 1 / ranks) {
      const double share = RoundTo(computed, shares[rank]);
      return RoundTo(narrow, RoundTo(computed, value * share));
    }
    return divide_first ? RoundTo(narrow, RoundTo(wide, value / ranks))
                        : RoundTo(narrow, RoundTo(narrow, value) / ranks);
  };
  Gradients result = local[0];
  for (size_t p = 0; p < result.size(); ++p) {
    for (size_t i = 0; i < result[p].size(); ++i) {
      double sum = contribution(0, local[0][p][i]);
      for (size_t w = 1; w < local.size(); ++w) {
        sum = RoundTo(narrow, sum + contribution(w, local[w][p][i]));
      }
      result[p][i] = sum;
    }
  }
  return result;
}

}  // namespace reference
}  // namespace coxswain
