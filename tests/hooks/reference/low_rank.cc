#include "tests/hooks/reference/low_rank.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace coxswain {
namespace reference {
namespace {

// Gradients and errors, by rank.
std::vector<Matrix> Corrected(const std::vector<Matrix>& gradients,
                              const LowRankState& state) {
  std::vector<Matrix> x = gradients;
  for (size_t w = 0; w < state.errors.size(); ++w) {
    x[w] = Plus(x[w], state.errors[w]);
  }
  return x;
}

}  // namespace

size_t FactorColumns(const std::vector<int64_t>& shape,
                     const LowRankOptions& options) {
  if (shape.size() < 2) return 0;
  int64_t m = 1;
  for (size_t i = 1; i < shape.size(); ++i) m *= shape[i];
  const int64_t n = shape[0];
  const int64_t r = std::min({n, m, options.rank});
  const auto factors = static_cast<double>((n + m) * r);
  const bool saves = factors * options.rate < static_cast<double>(n * m);
  return saves ? static_cast<size_t>(r) : 0;
}

Matrix DrawnFactor(uint64_t seed, const std::string& name, int64_t step,
                   size_t rows, size_t columns) {
  const CounterRandom random(
      seed, StableHash(name) ^ Mix64(static_cast<uint64_t>(step)));
  Matrix q(rows, columns);
  for (size_t k = 0; k < columns; ++k) {
    for (size_t j = 0; j < rows; ++j) q.at(j, k) = random.Normal(k * rows + j);
  }
  return q;
}

Matrix PowerSgdStep(const std::vector<Matrix>& gradients,
                    const LowRankOptions& options, LowRankState& state) {
  const std::vector<Matrix> x = Corrected(gradients, state);
  const Matrix basis = Orthonormal(state.q, options.epsilon);
  std::vector<Matrix> factors;
  for (const Matrix& own : x) factors.push_back(Times(own, basis));
  // PyTorch adds epsilon to the norms of the sum, not of the mean.
  Matrix p = MeanOf(factors);
  if (options.global_residual) {
    p = Plus(Matrix(), p, static_cast<double>(x.size()));
  }
  p = Orthonormal(p, options.epsilon);
  factors.clear();
  for (const Matrix& own : x) factors.push_back(Times(Transposed(own), p));
  state.q = MeanOf(factors);
  const Matrix result = Times(p, Transposed(state.q));
  if (!options.error_feedback) return result;
  state.errors.clear();
  for (size_t w = 0; w < x.size(); ++w) {
    const Matrix sent =
        options.global_residual ? result : Times(p, Transposed(factors[w]));
    state.errors.push_back(Plus(x[w], sent, -1));
  }
  return result;
}

Matrix AcpStep(const std::vector<Matrix>& gradients, bool left,
               const LowRankOptions& options, LowRankState& state) {
  const std::vector<Matrix> x = Corrected(gradients, state);
  Matrix& fixed = left ? state.q : state.p;
  fixed = Orthonormal(fixed, options.epsilon);
  std::vector<Matrix> factors;
  for (const Matrix& own : x) {
    factors.push_back(Times(left ? own : Transposed(own), fixed));
  }
  const auto product = [&](const Matrix& factor) {
    return left ? Times(factor, Transposed(fixed))
                : Times(fixed, Transposed(factor));
  };
  if (options.error_feedback) {
    state.errors.clear();
    for (size_t w = 0; w < x.size(); ++w) {
      state.errors.push_back(Plus(x[w], product(factors[w]), -1));
    }
  }
  (left ? state.p : state.q) = MeanOf(factors);
  return product(left ? state.p : state.q);
}

LowRankReference::LowRankReference(std::vector<ParameterSpec> parameters,
                                   LowRankOptions options)
    : parameters_(std::move(parameters)), options_(options) {}

Gradients LowRankReference::Step(const std::vector<Gradients>& local,
                                 int64_t step) {
  Gradients result;
  for (size_t index = 0; index < parameters_.size(); ++index) {
    const ParameterSpec& parameter = parameters_[index];
    const auto n = static_cast<size_t>(
        parameter.shape.empty() || parameter.count() == 0 ? 1
                                                          : parameter.shape[0]);
    std::vector<Matrix> all;
    for (const Gradients& own : local) {
      all.emplace_back(n, own[index].size() / n, own[index]);
    }
    result.push_back(StepOne(index, all, step));
  }
  return result;
}

std::vector<double> LowRankReference::StepOne(size_t index,
                                              const std::vector<Matrix>& all,
                                              int64_t step) {
  const ParameterSpec& parameter = parameters_[index];
  const size_t r = FactorColumns(parameter.shape, options_);
  LowRankState& state = states_[index];
  if (r == 0) {
    const std::vector<Matrix> x = Corrected(all, state);
    const Matrix mean = MeanOf(x);
    if (options_.global_residual && options_.error_feedback) {
      state.errors.clear();
      for (const Matrix& own : x) state.errors.push_back(Plus(own, mean, -1));
    }
    return mean.values;
  }
  const bool left = options_.alternating && step % 2 == 1;
  Matrix& basis = options_.alternating && !left ? state.p : state.q;
  if (basis.empty() || !options_.warm_start) {
    basis = DrawnFactor(options_.seed, parameter.name, step,
                        &basis == &state.p ? all[0].rows : all[0].columns, r);
  }
  return (options_.alternating ? AcpStep(all, left, options_, state)
                               : PowerSgdStep(all, options_, state))
      .values;
}

Gradients LowRankReference::MeanError() const {
  Gradients mean;
  for (size_t index = 0; index < parameters_.size(); ++index) {
    const auto found = states_.find(index);
    Matrix error(1, static_cast<size_t>(parameters_[index].count()));
    if (found != states_.end() && !found->second.errors.empty()) {
      error = MeanOf(found->second.errors);
    }
    mean.push_back(error.values);
  }
  return mean;
}

}  // namespace reference
}  // namespace coxswain
