#include "cli/commands.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "hooks/hook_list.h"
#include "hooks/registry/registry.h"
#include "hooks/registry/yaml_spec.h"

namespace coxswain {
namespace {

bool IsCalled(const HookDescription& hook, const std::string& name) {
  return hook.name == name ||
         std::count(hook.aliases.begin(), hook.aliases.end(), name) > 0;
}

// Returns all hooks, or the one of this name.
absl::StatusOr<std::vector<HookDescription>> Choose(const std::string& name) {
  std::vector<HookDescription> hooks = ListHooks();
  if (name.empty()) return hooks;
  for (const HookDescription& hook : hooks) {
    if (IsCalled(hook, name)) return std::vector<HookDescription>{hook};
  }
  return absl::NotFoundError(NoSuchHook(name));
}

}  // namespace

absl::StatusOr<std::string> DescribeHooks(const HooksOptions& options) {
  if (!options.check.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(const std::string spec,
                              ReadHookArgument(options.check));
    return absl::StrCat(spec, "\n");
  }
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<HookDescription> hooks,
                            Choose(options.name));
  if (options.json) return HooksAsJson(hooks);
  if (options.markdown) return HooksAsMarkdown(hooks);
  return HooksAsText(hooks);
}

}  // namespace coxswain
