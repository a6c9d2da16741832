#ifndef COXSWAIN_HOOKS_KERNELS_FACTORS_H_
#define COXSWAIN_HOOKS_KERNELS_FACTORS_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace coxswain {

// Squares of norms between which sums of squares are exact enough.
struct SquareRange {
  double smallest, largest;
};

// Cholesky's G = R'R of the Gram matrix G of r columns, and U = R^-1, all
// r x r by rows. kColumns is r, or 0 where r is known at run time only. Used
// by orthogonalise.cc only.
template <int64_t kColumns>
class Factors {
 public:
  explicit Factors(int64_t r = kColumns) : r_(r) {
    if constexpr (kColumns == 0) {
      reciprocals_.resize(Index(r));
      for (Square* square : {&gram_, &upper_, &inverse_}) {
        square->resize(Index(r * r));
      }
    }
  }

  // The upper triangle of G, to be filled in before Factorise.
  double* gram() { return gram_.data(); }
  // The upper triangle of U.
  const double* inverse() const { return inverse_.data(); }
  // The square of a bound of the condition of the columns, each scaled to
  // length 1.
  double squared_condition() const { return squared_condition_; }

  // False where the squares are out of range or the condition may exceed the
  // largest one.
  bool Factorise(const SquareRange& squares, double largest_condition) {
    const double largest = largest_condition * largest_condition;
    if (!IsInRange(squares) || !Cholesky(1 / largest)) return false;
    Invert();
    // Columns of length 1 make the norm of R sqrt(r); what scales R'R scales
    // the rows of U inversely.
    double norm = 0;
    for (int64_t i = 0; i < r(); ++i) {
      double row = 0;
      for (int64_t j = i; j < r(); ++j) {
        row += inverse_[At(i, j)] * inverse_[At(i, j)];
      }
      norm += row * gram_[At(i, i)];
    }
    squared_condition_ = norm * static_cast<double>(r());
    return squared_condition_ <= largest;
  }

 private:
  static constexpr auto kSize = static_cast<size_t>(kColumns);
  using Row = std::conditional_t<kColumns == 0, std::vector<double>,
                                 std::array<double, kSize>>;
  using Square = std::conditional_t<kColumns == 0, std::vector<double>,
                                    std::array<double, kSize * kSize>>;

  // Known to the compiler if kColumns is.
  int64_t r() const { return kColumns == 0 ? r_ : kColumns; }
  size_t At(int64_t i, int64_t j) const { return Index(i * r() + j); }
  static size_t Index(int64_t i) { return static_cast<size_t>(i); }

  // Written so that a NaN fails, here and below.
  bool IsInRange(const SquareRange& squares) const {
    bool in_range = true;
    for (int64_t i = 0; i < r(); ++i) {
      const double square = gram_[At(i, i)];
      in_range &= square >= squares.smallest && square <= squares.largest;
    }
    return in_range;
  }

  // False where less than the `smallest` part of a column is left.
  bool Cholesky(double smallest) {
    bool safe = true;
    for (int64_t i = 0; i < r(); ++i) {
      for (int64_t j = i; j < r(); ++j) {
        double rest = gram_[At(i, j)];
        for (int64_t k = 0; k < i; ++k) {
          rest -= upper_[At(k, i)] * upper_[At(k, j)];
        }
        if (i == j) {
          safe &= rest > smallest * gram_[At(i, i)];
          // 1 / sqrt(rest), without one waiting for the other.
          reciprocals_[Index(i)] = std::sqrt(rest) * (1 / rest);
        }
        upper_[At(i, j)] = rest * reciprocals_[Index(i)];
      }
    }
    return safe;
  }

  void Invert() {
    for (int64_t j = 0; j < r(); ++j) {
      inverse_[At(j, j)] = reciprocals_[Index(j)];
      for (int64_t i = j - 1; i >= 0; --i) {
        double sum = 0;
        for (int64_t k = i + 1; k <= j; ++k) {
          sum += upper_[At(i, k)] * inverse_[At(k, j)];
        }
        inverse_[At(i, j)] = -sum * reciprocals_[Index(i)];
      }
    }
  }

  const int64_t r_;
  Row reciprocals_;  // of R's diagonal
  Square gram_, upper_, inverse_;
  double squared_condition_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_FACTORS_H_
