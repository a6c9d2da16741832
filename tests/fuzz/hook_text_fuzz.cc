// Hooks as users and plans name them: specs, and YAML files.

#include <string>

#include "base/check.h"
#include "hooks/registry/registry.h"
#include "hooks/registry/yaml_spec.h"
#include "tests/fuzz/decoders.h"

namespace coxswain {
namespace {

// What is canonical stays as it is, and names a hook.
void CheckCanonical(const std::string& spec) {
  const auto again = CanonicalSpec(spec);
  COXSWAIN_CHECK(again.ok() && *again == spec);
  COXSWAIN_CHECK(MakeHook(spec).ok());
  COXSWAIN_CHECK(MakeAverager(spec).ok());
  WithStartStep(spec, 5).IgnoreError();
}

}  // namespace

void FuzzHookSpec(absl::string_view input) {
  const auto canonical = CanonicalSpec(input);
  if (canonical.ok()) CheckCanonical(*canonical);
}

void FuzzHookYaml(absl::string_view input) {
  const auto spec = HookSpecFromYaml(input);
  if (spec.ok()) CheckCanonical(*spec);
}

}  // namespace coxswain
