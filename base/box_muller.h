#ifndef COXSWAIN_BASE_BOX_MULLER_H_
#define COXSWAIN_BASE_BOX_MULLER_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"

// The Box-Muller transform with the same bits on every processor, for values
// that each rank computes by itself and all must have alike. A mathematical
// library promises no bits: its logarithm and cosine depend on the instructions
// that it finds. What is here is made of additions, multiplications, divisions
// and square roots in double alone, as the sum of two doubles (Dekker: "A
// floating-point technique for extending the available precision", 1971), so
// that results are nearly always the nearest double. Compile it with
// -ffp-contract=off.

namespace coxswain {
namespace box_muller {

// high + low, of which low is at most half a unit in the last place of high.
struct Twin {
  double high;
  double low;
};

// Returns a + b exactly, for |a| >= |b|.
COXSWAIN_HOST_DEVICE inline Twin OrderedSum(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

// a + b exactly.
COXSWAIN_HOST_DEVICE inline Twin Sum(double a, double b) {
  const double sum = a + b;
  const double of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}

// a * b exactly.
COXSWAIN_HOST_DEVICE inline Twin Product(double a, double b) {
  constexpr double kSplit = 134217729;  // 2^27 + 1
  const double a_high = kSplit * a - (kSplit * a - a);
  const double b_high = kSplit * b - (kSplit * b - b);
  const double a_low = a - a_high;
  const double b_low = b - b_high;
  const double product = a * b;
  return {product,
          ((a_high * b_high - product) + a_high * b_low + a_low * b_high) +
              a_low * b_low};
}

COXSWAIN_HOST_DEVICE inline Twin Add(const Twin& a, const Twin& b) {
  const Twin sum = Sum(a.high, b.high);
  return OrderedSum(sum.high, sum.low + (a.low + b.low));
}

COXSWAIN_HOST_DEVICE inline Twin Multiply(const Twin& a, const Twin& b) {
  const Twin product = Product(a.high, b.high);
  return OrderedSum(product.high,
                    product.low + (a.high * b.low + a.low * b.high));
}

COXSWAIN_HOST_DEVICE inline Twin Divide(const Twin& a, const Twin& b) {
  const double first = a.high / b.high;
  const Twin part = Multiply({-first, 0}, b);
  const Twin rest = Add(a, part);
  return OrderedSum(first, rest.high / b.high);
}

// Returns the natural logarithm of a normal number above 0.
COXSWAIN_HOST_DEVICE inline double Log(double x) {
  constexpr Twin kLog2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};
  constexpr double kRootOfTwo = 0x1.6a09e667f3bcdp+0;
  constexpr int kTerms = 16;
  uint64_t bits;
  memcpy(&bits, &x, sizeof(bits));
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | uint64_t{1023} << 52;
  double mantissa;
  memcpy(&mantissa, &bits, sizeof(mantissa));
  if (mantissa > kRootOfTwo) {
    mantissa /= 2;
    ++exponent;
  }
  // 2 artanh(s) = 2 s (1 + s^2 / 3 + s^4 / 5 + ...).
  const Twin s = Divide({mantissa - 1, 0}, Sum(mantissa, 1));
  const Twin square = Multiply(s, s);
  Twin series = {0, 0};
  for (int k = kTerms; k >= 0; --k) {
    series = Add(Divide({1, 0}, {2.0 * k + 1, 0}), Multiply(square, series));
  }
  const Twin of_mantissa = Multiply({2 * s.high, 2 * s.low}, series);
  const Twin of_exponent = Multiply({static_cast<double>(exponent), 0}, kLog2);
  return Add(of_exponent, of_mantissa).high;
}

// 1 - z / (f (f + 1)) (1 - z / ((f + 2) (f + 3)) (1 - ...)): the series of the
// cosine with f = 1, and with f = 2 that of the sine over its argument, for
// z the square of an argument up to pi / 4.
COXSWAIN_HOST_DEVICE inline Twin AlternatingSeries(const Twin& z, int first) {
  constexpr int kTerms = 12;
  Twin series = {1, 0};
  for (int k = kTerms - 1; k >= 0; --k) {
    const double factor = first + 2 * k;
    const Twin term = Divide(Multiply(z, series), {factor * (factor + 1), 0});
    series = Add({1, 0}, {-term.high, -term.low});
  }
  return series;
}

// Returns the cosine of an angle from 0 to 2 pi.
COXSWAIN_HOST_DEVICE inline double Cos(double angle) {
  constexpr Twin kQuarter = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54};
  constexpr double kQuartersPerUnit = 0x1.45f306dc9c883p-1;
  const int quarters = static_cast<int>(angle * kQuartersPerUnit + 0.5);
  const Twin rest =
      Add({angle, 0}, Multiply({-static_cast<double>(quarters), 0}, kQuarter));
  const Twin square = Multiply(rest, rest);
  if (quarters % 2 == 0) {
    const double cosine = AlternatingSeries(square, 1).high;
    return quarters % 4 == 0 ? cosine : -cosine;
  }
  const double sine = Multiply(rest, AlternatingSeries(square, 2)).high;
  return quarters % 4 == 3 ? sine : -sine;
}

}  // namespace box_muller

// Returns a standard normal number from two that are uniform in [0, 1).
COXSWAIN_HOST_DEVICE inline double BoxMuller(double u, double v) {
  constexpr double kTwoPi = 6.283185307179586476925286766559;
  // 1 - u is in (0, 1], so the logarithm is finite.
  return sqrt(-2.0 * box_muller::Log(1.0 - u)) * box_muller::Cos(kTwoPi * v);
}

}  // namespace coxswain

#endif  // COXSWAIN_BASE_BOX_MULLER_H_
