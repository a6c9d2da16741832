#ifndef COXSWAIN_HOOKS_REGISTRY_REGISTRY_H_
#define COXSWAIN_HOOKS_REGISTRY_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/reduce/averager.h"
#include "client/reduce/hook.h"
#include "hooks/hook_row.h"
#include "hooks/spec.h"

namespace coxswain {

// All hooks by name: those of the library, and a program's own. Safe from any
// thread.

// Adds a program's own hook, which specs can name from then on, wrap and plan
// like any other. For the rest of the process; there is no way to take it
// back. All workers of a job register it before they join, because the job's
// plan may name it. ALREADY_EXISTS if one of its names is taken,
// INVALID_ARGUMENT if the row makes no sense.
absl::Status RegisterHook(HookRow row);

// Makes the hook that a spec names (grammar: hooks/spec.h), not yet
// configured. INVALID_ARGUMENT names the place in the spec, what is wrong
// there, and what would be right.
absl::StatusOr<std::unique_ptr<Hook>> MakeHook(absl::string_view spec);

// Returns the one way to write a spec: the hook's own name, only options that
// differ from their defaults, in the order of the table, no spaces. Equal hooks
// have equal canonical specs. Errors as MakeHook.
absl::StatusOr<std::string> CanonicalSpec(absl::string_view spec);
// Returns the same for a spec that did not come as text; `error` makes its
// errors.
absl::StatusOr<std::string> CanonicalSpec(const Spec& spec,
                                          const SpecErrorAt& error);

// Returns the canonical spec with start_step set to `step` in the hook that has
// this option, however deep it is wrapped. INVALID_ARGUMENT if none has it, or
// the step is out of its range; otherwise as MakeHook.
absl::StatusOr<std::string> WithStartStep(absl::string_view spec, int64_t step);

// Returns the averager that a spec names besides its hook, or that the hook
// within a wrapper does; null if there is none, as with most. Errors as
// MakeHook.
absl::StatusOr<std::unique_ptr<Averager>> MakeAverager(absl::string_view spec);

// Returns the error of a name that no hook has: what there is in this process,
// the one that was probably meant, and how a program's own hook comes into it.
std::string NoSuchHook(const std::string& name);

// Returns what there is to choose from, sorted by name.
std::vector<HookDescription> ListHooks();

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_REGISTRY_REGISTRY_H_
