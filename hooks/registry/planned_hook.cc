#include "hooks/registry/planned_hook.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "hooks/registry/registry.h"

namespace coxswain {
namespace {

// Calls `make` with the plan's spec.
template <typename T>
absl::StatusOr<std::unique_ptr<T>> Make(
    const schedule::Plan& plan,
    absl::StatusOr<std::unique_ptr<T>> (*make)(absl::string_view)) {
  const absl::StatusOr<std::string> spec = PlannedSpec(plan);
  absl::StatusOr<std::unique_ptr<T>> made =
      spec.ok() ? make(*spec) : spec.status();
  if (made.ok()) return made;
  return absl::Status(
      made.status().code(),
      absl::StrCat("version ", plan.version,
                   " of the job's plan, which is made from the first "
                   "worker's manifest or a proposal, names a hook that cannot "
                   "be made: ",
                   made.status().message()));
}

}  // namespace

absl::StatusOr<std::string> PlannedSpec(const schedule::StepSettings& plan) {
  if (plan.compression_start_step < 0) return plan.hook;
  return WithStartStep(plan.hook, plan.compression_start_step);
}

absl::StatusOr<std::unique_ptr<Hook>> MakePlannedHook(
    const schedule::Plan& plan) {
  return Make<Hook>(plan, MakeHook);
}

absl::StatusOr<std::unique_ptr<Averager>> MakePlannedAverager(
    const schedule::Plan& plan) {
  return Make<Averager>(plan, MakeAverager);
}

}  // namespace coxswain
