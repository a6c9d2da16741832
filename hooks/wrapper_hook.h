#ifndef COXSWAIN_HOOKS_WRAPPER_HOOK_H_
#define COXSWAIN_HOOKS_WRAPPER_HOOK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/reduce/hook.h"

namespace coxswain {

// What the hooks that wrap another one have in common: all but the exchange is
// the inner hook's, its state too, so that a wrapper can be put on and taken
// off between runs. A wrapper overrides what it changes.
class WrapperHook : public Hook {
 public:
  WrapperHook(std::string spec, std::unique_ptr<Hook> inner)
      : spec_(std::move(spec)), inner_(std::move(inner)) {}

  std::string spec() const override { return spec_; }
  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    return inner_->Configure(parameters, world_size);
  }
  absl::Status Commit() override { return inner_->Commit(); }
  void Rollback() override { inner_->Rollback(); }
  int64_t step() const override { return inner_->step(); }
  bool started() const override { return inner_->started(); }
  bool needs_frozen_layout() const override {
    return inner_->needs_frozen_layout();
  }
  bool needs_averager() const override { return inner_->needs_averager(); }
  GradientReach reach() const override { return inner_->reach(); }
  bool applies_share() const override { return inner_->applies_share(); }
  std::vector<NonFiniteGradient> non_finite() const override {
    return inner_->non_finite();
  }
  absl::StatusOr<HookState> SaveOwn() const override {
    return inner_->SaveOwn();
  }
  absl::Status LoadOwn(const HookState& state, double error_scale) override {
    return inner_->LoadOwn(state, error_scale);
  }
  double ErrorNorm() const override { return inner_->ErrorNorm(); }
  absl::StatusOr<HookState> SaveState(Communicator& communicator) override {
    return inner_->SaveState(communicator);
  }
  absl::Status LoadState(const HookState& state, int rank,
                         int world_size) override {
    return inner_->LoadState(state, rank, world_size);
  }

 protected:
  Hook& inner() { return *inner_; }
  const Hook& inner() const { return *inner_; }

 private:
  const std::string spec_;
  const std::unique_ptr<Hook> inner_;
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_WRAPPER_HOOK_H_
