#include "client/reduce/averager_change.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook_state.h"

namespace coxswain {
namespace {

// Equals a hook, which outlives it, but needs no averager: its owner has one.
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
  absl::StatusOr<std::unique_ptr<Exchange>> PrepareSlice(
      const Bucket& bucket, const BucketSlices& slices,
      Communicator& communicator) override {
    return hook_.PrepareSlice(bucket, slices, communicator);
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
  bool takes_parts() const override { return hook_.takes_parts(); }
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

absl::Status ChangeHookAndAverager(const HookOwner& owner,
                                   std::unique_ptr<Hook> hook,
                                   std::unique_ptr<Averager> averager,
                                   bool carry) {
  // What stands in for it would pass for one without an averager.
  COXSWAIN_RETURN_IF_ERROR(owner.reducer->CheckHook(*hook));
  std::optional<HookState> state;
  if (carry && *owner.averager != nullptr && averager != nullptr) {
    StateOfAverager before(owner.averager->get());
    absl::StatusOr<HookState> gathered = GatherHookState(
        before, *owner.communicator, MaxStateBytes(owner.reducer->parameters()),
        owner.timeout);
    COXSWAIN_RETURN_IF_ERROR(owner.keep(gathered.status()));
    state = *std::move(gathered);
  }
  std::unique_ptr<Hook> paired;
  if (hook->needs_averager()) paired = std::make_unique<PairedHook>(hook.get());
  COXSWAIN_RETURN_IF_ERROR(owner.reducer->ChangeHook(
      paired != nullptr ? paired.get() : hook.get(), carry));
  // The reducer has let go of the old ones.
  *owner.hook = std::move(hook);
  *owner.paired = std::move(paired);
  *owner.averager = std::move(averager);
  COXSWAIN_RETURN_IF_ERROR(owner.configure());
  if (!state || *owner.averager == nullptr) return absl::OkStatus();
  return (*owner.averager)
      ->LoadState(*state, owner.communicator->rank(),
                  owner.communicator->size());
}

}  // namespace coxswain
