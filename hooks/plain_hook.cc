#include "hooks/plain_hook.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "hooks/spec.h"

namespace coxswain {
namespace {

class FunctionExchange : public Exchange {
 public:
  explicit FunctionExchange(
      std::function<absl::StatusOr<WorkPtr>(int call)> advance)
      : advance_(std::move(advance)) {}

  absl::StatusOr<WorkPtr> Advance() override { return advance_(calls_++); }

 private:
  const std::function<absl::StatusOr<WorkPtr>(int call)> advance_;
  int calls_ = 0;
};

}  // namespace

absl::Status PlainHook::Configure(const std::vector<ParameterSpec>&,
                                  int world_size) {
  if (world_size >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a world has at least 1 rank, got ", world_size));
}

absl::Status PlainHook::Commit() {
  ++step_;
  return absl::OkStatus();
}

absl::StatusOr<HookState> PlainHook::SaveState(Communicator&) {
  HookState state;
  state.spec = spec_;
  state.step = step_;
  return state;
}

absl::Status PlainHook::LoadState(const HookState& state, int, int) {
  COXSWAIN_RETURN_IF_ERROR(CheckStateName(spec_, state));
  step_ = state.step;
  return absl::OkStatus();
}

absl::Status PlainHook::LoadOwn(const HookState& state, double error_scale) {
  COXSWAIN_RETURN_IF_ERROR(CheckErrorScale(spec_, error_scale));
  return LoadState(state, 0, 1);
}

std::unique_ptr<Exchange> MakeExchange(
    std::function<absl::StatusOr<WorkPtr>(int call)> advance) {
  return std::make_unique<FunctionExchange>(std::move(advance));
}

absl::Status CheckBucket(absl::string_view hook, const Bucket& bucket) {
  if (bucket.data.device.kind != Device::Kind::kCpu) {
    return absl::InvalidArgumentError(
        absl::StrCat("hook ", hook, ": bucket ", bucket.index,
                     " is not in the CPU's memory; the hook has no kernels for "
                     "other devices"));
  }
  return CheckBucketType(hook, bucket);
}

absl::Status CheckBucketType(absl::string_view hook, const Bucket& bucket) {
  switch (bucket.data.dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kFloat16:
    case DType::kBFloat16:
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("hook ", hook, ": bucket ", bucket.index, " holds ",
                       NameOf(bucket.data.dtype),
                       ", but only floating-point gradients have an "
                       "average"));
  }
}

absl::Status CheckErrorScale(absl::string_view hook, double error_scale) {
  if (std::isfinite(error_scale) && error_scale >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "hook ", hook, ": errors cannot be multiplied by ", error_scale,
      "; give the new number of ranks over the old one, or 0 for none"));
}

absl::Status CheckStateName(absl::string_view own_spec,
                            const HookState& state) {
  COXSWAIN_ASSIGN_OR_RETURN(const Spec own, ParseSpec(own_spec));
  const absl::StatusOr<Spec> saved = ParseSpec(state.spec);
  if (!saved.ok() || saved->name != own.name) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the saved hook state is of hook '", state.spec, "', this run uses '",
        own_spec, "'; use the hook that saved it, or start without its state"));
  }
  if (state.step < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the saved hook state claims ", state.step, " steps"));
  }
  return absl::OkStatus();
}

}  // namespace coxswain
