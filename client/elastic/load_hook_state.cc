#include "client/elastic/load_hook_state.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/logging.h"

namespace coxswain {
namespace {

constexpr absl::Duration kRefusalTimeout = absl::Seconds(30);

void WarnDropped(const HookState& state, const Hook& hook,
                 absl::string_view why) {
  LogWarning("hook_state_dropped", {{"of", state.spec},
                                    {"step", state.step},
                                    {"hook", hook.spec()},
                                    {"reason", why}});
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

absl::Status LoadHookState(const ElasticGeneration& generation,
                           const schedule::Plan& plan, Hook* hook) {
  if (!generation.hook_state) return absl::OkStatus();
  return LoadHookState(*generation.hook_state, generation.error_scale, plan,
                       hook);
}

absl::Status LoadHookState(const HookState& state, double error_scale,
                           const schedule::Plan& plan, Hook* hook) {
  const bool resets =
      plan.terms.hook_state == schedule::HookStatePolicy::kReset;
  if (resets && state.spec != hook->spec()) {
    WarnDropped(state, *hook, "the plan has hook_state=reset");
    return absl::OkStatus();
  }
  const absl::Status loaded = hook->LoadOwn(state, error_scale);
  if (!absl::IsFailedPrecondition(loaded)) return loaded;
  WarnDropped(state, *hook, loaded.message());
  return absl::OkStatus();
}

}  // namespace coxswain
