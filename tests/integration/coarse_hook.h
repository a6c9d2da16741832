#ifndef COXSWAIN_TESTS_INTEGRATION_COARSE_HOOK_H_
#define COXSWAIN_TESTS_INTEGRATION_COARSE_HOOK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/reduce/hook.h"

namespace coxswain {

// Averages float64 gradients rounded down to multiples of 64, and adds what it
// has cut off to the next one: an error feedback in which, with whole numbers
// and worlds of a power of two, nothing is ever rounded by the machine. So what
// becomes of the errors can be checked to the last bit.
class CoarseHook : public Hook {
 public:
  static constexpr double kUnit = 64;

  std::string spec() const override { return "coarse"; }
  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override;
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override;
  absl::Status Commit() override;
  void Rollback() override { staged_.clear(); }
  int64_t step() const override { return step_; }
  bool needs_frozen_layout() const override { return true; }
  absl::StatusOr<HookState> SaveOwn() const override;
  absl::Status LoadOwn(const HookState& state, double error_scale) override;
  double ErrorNorm() const override;
  absl::StatusOr<HookState> SaveState(Communicator&) override;
  absl::Status LoadState(const HookState&, int, int) override;

 private:
  using Errors = std::map<std::string, std::vector<double>>;

  std::vector<ParameterSpec> parameters_;
  int world_size_ = 0;
  Errors errors_;
  Errors staged_;
  int64_t step_ = 0;
};

// Returns the errors in its state, parameter after parameter.
std::vector<double> CoarseErrors(const HookState& state);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_INTEGRATION_COARSE_HOOK_H_
