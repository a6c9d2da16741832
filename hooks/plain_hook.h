#ifndef COXSWAIN_HOOKS_PLAIN_HOOK_H_
#define COXSWAIN_HOOKS_PLAIN_HOOK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/reduce/hook.h"

namespace coxswain {

// What the hooks that remember nothing but the number of steps have in common.
class PlainHook : public Hook {
 public:
  explicit PlainHook(std::string spec) : spec_(std::move(spec)) {}

  std::string spec() const override { return spec_; }
  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override;
  absl::Status Commit() override;
  void Rollback() override {}
  int64_t step() const override { return step_; }
  absl::StatusOr<HookState> SaveState(Communicator& communicator) override;
  // Takes the step. The state must be of a hook of the same name.
  absl::Status LoadState(const HookState& state, int rank,
                         int world_size) override;
  // The step; there are no errors to scale.
  absl::Status LoadOwn(const HookState& state, double error_scale) override;

 private:
  const std::string spec_;
  int64_t step_ = 0;
};

// Returns an exchange that a function carries out: each Advance calls it, with
// 0 the first time, then 1, and so on.
std::unique_ptr<Exchange> MakeExchange(
    std::function<absl::StatusOr<WorkPtr>(int call)> advance);

// INVALID_ARGUMENT if a hook that has kernels for the CPU only cannot average
// this bucket: gradients that are not floating point, or not in the CPU's
// memory.
absl::Status CheckBucket(absl::string_view hook, const Bucket& bucket);
// The same for a hook that has kernels for GPUs as well.
absl::Status CheckBucketType(absl::string_view hook, const Bucket& bucket);

// FAILED_PRECONDITION if `state` was saved by a hook of another name.
absl::Status CheckStateName(absl::string_view own_spec, const HookState& state);

// INVALID_ARGUMENT unless LoadOwn can multiply errors by this.
absl::Status CheckErrorScale(absl::string_view hook, double error_scale);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_PLAIN_HOOK_H_
