#include "client/reduce/averager_change.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace coxswain {
namespace {

class PairedHook : public Hook {
 public:
  explicit PairedHook(Hook* hook) : hook_(*hook) {}

  std::string spec() const override { return hook_.spec(); }
  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    return hook_.Configure(parameters, world_size);
  }
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    return hook_.Prepare(bucket, communicator);
  }
  absl::Status Commit() override { return hook_.Commit(); }
  void Rollback() override { hook_.Rollback(); }
  int64_t step() const override { return hook_.step(); }
  bool started() const override { return hook_.started(); }
  bool needs_frozen_layout() const override {
    return hook_.needs_frozen_layout();
  }
  GradientReach reach() const override { return hook_.reach(); }
  bool applies_share() const override { return hook_.applies_share(); }
  std::vector<NonFiniteGradient> non_finite() const override {
    return hook_.non_finite();
  }
  absl::StatusOr<HookState> SaveOwn() const override { return hook_.SaveOwn(); }
  absl::Status LoadOwn(const HookState& state, double error_scale) override {
    return hook_.LoadOwn(state, error_scale);
  }
  double ErrorNorm() const override { return hook_.ErrorNorm(); }
  absl::StatusOr<HookState> SaveState(Communicator& communicator) override {
    return hook_.SaveState(communicator);
  }
  absl::Status LoadState(const HookState& state, int rank,
                         int world_size) override {
    return hook_.LoadState(state, rank, world_size);
  }

 private:
  Hook& hook_;
};

// Has a state, and nothing else.
class StateOfAverager : public Hook {
 public:
  explicit StateOfAverager(Averager* averager) : averager_(*averager) {}

  std::string spec() const override { return averager_.spec(); }
  absl::Status Configure(const std::vector<ParameterSpec>&, int) override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(const Bucket&,
                                                    Communicator&) override {
    return absl::InternalError("an averager exchanges no gradients");
  }
  absl::Status Commit() override { return absl::OkStatus(); }
  void Rollback() override {}
  int64_t step() const override { return averager_.step(); }
  absl::StatusOr<HookState> SaveState(Communicator& communicator) override {
    return averager_.SaveState(communicator);
  }
  absl::Status LoadState(const HookState& state, int rank,
                         int world_size) override {
    return averager_.LoadState(state, rank, world_size);
  }

 private:
  Averager& averager_;
};

// Of an averager's state: per element its values at up to 8 bytes, several
// times over, and text.
int64_t MaxStateBytes(const std::vector<ParameterSpec>& parameters) {
  int64_t limit = 64 << 20;
  for (const ParameterSpec& parameter : parameters) {
    limit += 64 * parameter.count();
  }
  return limit;
}

}  // namespace

std::unique_ptr<Hook> WithAverager(Hook* hook) {
  return std::make_unique<PairedHook>(hook);
}

absl::StatusOr<HookState> GatherAveragerState(
    Averager& averager, Communicator& communicator,
    const std::vector<ParameterSpec>& parameters, absl::Duration timeout) {
  StateOfAverager hook(&averager);
  return GatherHookState(hook, communicator, MaxStateBytes(parameters),
                         timeout);
}

}  // namespace coxswain
