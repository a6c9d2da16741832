#include "client/elastic/load_hook_state.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr absl::Duration kRefusalTimeout = absl::Seconds(30);

// Returns the warning.
std::string WarnDropped(const HookState& state, const Hook& hook,
                        absl::string_view why) {
  LogWarning("hook_state_dropped", {{"of", state.spec},
                                    {"step", state.step},
                                    {"hook", hook.spec()},
                                    {"reason", why}});
  return absl::StrCat("the state of the hook ", state.spec, " of step ",
                      state.step, " is dropped, and the hook ", hook.spec(),
                      " begins anew: ", why);
}

}  // namespace

absl::Status CheckElasticHook(const ElasticGeneration& generation,
                              const Hook& hook) {
  if (!hook.needs_averager()) return absl::OkStatus();
  generation.session->Barrier("", "elastic/refused", kRefusalTimeout)
      .IgnoreError();
  return absl::UnimplementedError(absl::StrCat(
      "the hook ", hook.spec(),
      " works with an averager, and elastic training with none: the ranks' "
      "parameters would be apart when one is lost; take a hook that averages "
      "gradients"));
}

absl::Status LoadHookState(ElasticGeneration* generation,
                           const schedule::Plan& plan, Hook* hook) {
  if (!generation->hook_state) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(std::string warning,
                            LoadHookState(*generation->hook_state,
                                          generation->error_scale, plan, hook));
  if (!warning.empty()) {
    generation->recovery.warnings.push_back(std::move(warning));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> LoadHookState(const HookState& state,
                                          double error_scale,
                                          const schedule::Plan& plan,
                                          Hook* hook) {
  const bool resets =
      plan.terms.hook_state == schedule::HookStatePolicy::kReset;
  if (resets && state.spec != hook->spec()) {
    return WarnDropped(state, *hook, "the plan has hook_state=reset");
  }
  const absl::Status loaded = hook->LoadOwn(state, error_scale);
  if (absl::IsFailedPrecondition(loaded)) {
    return WarnDropped(state, *hook, loaded.message());
  }
  COXSWAIN_RETURN_IF_ERROR(loaded);
  return std::string();
}

}  // namespace coxswain
