#ifndef COXSWAIN_TESTS_HOOKS_REFERENCE_INT8_H_
#define COXSWAIN_TESTS_HOOKS_REFERENCE_INT8_H_

#include <cstddef>
#include <vector>

#include "client/device/tensor.h"

namespace coxswain {
namespace reference {

// int8 of one bucket that does not change, all ranks at once: quantised
// reduce-scatter, quantised all-gather, an error after each. In double with
// every operation rounded to the type that the hook computes in, so that its
// bits are the hook's.
class Int8Reference {
 public:
  // `type` is that of the gradients; they have `count` elements.
  Int8Reference(DType type, size_t count, size_t ranks, size_t block);

  // `local[r]` is rank r's bucket. Returns what every rank holds afterwards.
  std::vector<double> Step(const std::vector<std::vector<double>>& local);

  // Returns the mean over the ranks of what has not been sent.
  std::vector<double> MeanError() const;

 private:
  // Replaces the values of a block by what their codes are worth, and returns
  // what that leaves out.
  std::vector<double> Quantise(std::vector<double>& values) const;
  double Rounded(double value) const;

  const DType type_;
  const DType computed_in_;
  const size_t count_;
  const size_t block_;
  std::vector<std::vector<double>> errors_;  // by rank, of what it sent
  std::vector<double> average_error_;        // of what the owners sent
};

}  // namespace reference
}  // namespace coxswain

#endif  // COXSWAIN_TESTS_HOOKS_REFERENCE_INT8_H_
