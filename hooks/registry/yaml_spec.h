#ifndef COXSWAIN_HOOKS_REGISTRY_YAML_SPEC_H_
#define COXSWAIN_HOOKS_REGISTRY_YAML_SPEC_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// Hooks in YAML files. One document, in one of three forms:
//
//   powersgd(rank=4)        # a spec, as everywhere else
//
//   name: powersgd          # a map in our words
//   options: {rank: 4}      # optional; the names of the option table
//   inner: allreduce        # optional: the hook that this one wraps, as a
//                           # spec or as such a map
//   wrap: [stats, fp16]     # optional: what wraps it, the outermost first;
//                           # a spec, a map of name and options, or a list
//
//   comm_hook: power_sgd    # a map in Accelerate's words
//   comm_wrapper: bf16      # optional
//   comm_state_option: {matrix_approximation_rank: 2}   # optional
//
// comm_hook is no, fp16, bf16, power_sgd or batched_power_sgd; comm_wrapper is
// no, fp16 or bf16, and is an error where there is no hook to wrap; so are
// options for a hook that has none of them. Unknown and repeated keys are
// errors. Pure functions; safe from any thread; nothing is thrown.

inline constexpr size_t kMaxHookYaml = 16384;  // bytes

// Returns the canonical spec of the hook that the text names. INVALID_ARGUMENT
// names line and column, what is wrong there, and what would be right.
absl::StatusOr<std::string> HookSpecFromYaml(absl::string_view text);

// Returns what a flag such as --hook was given: a spec, or @FILE, a file of the
// above. The canonical spec. Errors as CanonicalSpec and HookSpecFromYaml;
// NOT_FOUND or another code of its own if the file cannot be read.
absl::StatusOr<std::string> ReadHookArgument(const std::string& argument);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_REGISTRY_YAML_SPEC_H_
