#ifndef COXSWAIN_TESTS_HOOKS_REFERENCE_LOW_RANK_H_
#define COXSWAIN_TESTS_HOOKS_REFERENCE_LOW_RANK_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/reduce/bucket.h"
#include "tests/conformance/hook_world.h"
#include "tests/hooks/reference/matrix.h"

namespace coxswain {
namespace reference {

// The low-rank hooks by their formulas, all ranks at once, in double. Written
// against the formulas (powersgd: Vogels, Karimireddy, Jaggi 2019; acp_sgd:
// Zhang, Zhang, Shi, Chu, Li 2023), not against the hooks.
struct LowRankOptions {
  int64_t rank = 1;
  double rate = 2;  // min_compression_rate
  bool error_feedback = true;
  bool warm_start = true;
  // What each rank keeps: its own part of what was lost, or, as PyTorch has
  // it, its gradient less the average that was sent, in raw tensors too.
  bool global_residual = false;
  // One factor per step, P in the outliers: acp_sgd.
  bool alternating = false;
  double epsilon = 0;
  uint64_t seed = 0;
};

// Returns the columns of the factors, 0 for a gradient that travels raw.
size_t FactorColumns(const std::vector<int64_t>& shape,
                     const LowRankOptions& options);

// Returns the first factor, as every rank draws it for itself.
Matrix DrawnFactor(uint64_t seed, const std::string& name, int64_t step,
                   size_t rows, size_t columns);

// What is known of one gradient.
struct LowRankState {
  std::vector<Matrix> errors;  // by rank; empty means zero
  Matrix q;                    // m x r; empty means not drawn
  Matrix p;                    // n x r, of the alternating hook alone
};

// Makes one step of PowerSGD of one matrix, and returns the result; updates the
// errors and Q.
Matrix PowerSgdStep(const std::vector<Matrix>& gradients,
                    const LowRankOptions& options, LowRankState& state);

// Makes one step of ACP-SGD, and returns the result; updates one of the
// factors, P if `left`.
Matrix AcpStep(const std::vector<Matrix>& gradients, bool left,
               const LowRankOptions& options, LowRankState& state);

// A whole model under powersgd or acp_sgd.
class LowRankReference {
 public:
  LowRankReference(std::vector<ParameterSpec> parameters,
                   LowRankOptions options);

  // Makes a step after `step` committed ones, and returns the result.
  Gradients Step(const std::vector<Gradients>& local, int64_t step);

  // Returns the states by registration index; a test may set them for a shared
  // start.
  std::map<size_t, LowRankState>& states() { return states_; }
  // Returns the mean error over the ranks.
  Gradients MeanError() const;

 private:
  std::vector<double> StepOne(size_t index, const std::vector<Matrix>& all,
                              int64_t step);

  const std::vector<ParameterSpec> parameters_;
  const LowRankOptions options_;
  std::map<size_t, LowRankState> states_;
};

}  // namespace reference
}  // namespace coxswain

#endif  // COXSWAIN_TESTS_HOOKS_REFERENCE_LOW_RANK_H_
