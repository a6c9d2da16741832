#include "hooks/planned_hook.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "hooks/registry.h"

namespace coxswain {
namespace {

absl::StatusOr<std::unique_ptr<Hook>> Make(const JobPlan& plan) {
  if (plan.compression_start_step < 0) return MakeHook(plan.hook);
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::string spec,
      WithStartStep(plan.hook, plan.compression_start_step));
  return MakeHook(spec);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Hook>> MakePlannedHook(const JobPlan& plan) {
  absl::StatusOr<std::unique_ptr<Hook>> hook = Make(plan);
  if (hook.ok()) return hook;
  return absl::Status(
      hook.status().code(),
      absl::StrCat("version ", plan.version,
                   " of the job's plan, which is made from the first "
                   "worker's manifest or a proposal, names a hook that cannot "
                   "be made: ",
                   hook.status().message()));
}

}  // namespace coxswain
