#ifndef COXSWAIN_CLI_HOOKS_H_
#define COXSWAIN_CLI_HOOKS_H_

#include <string>

#include "absl/status/statusor.h"
#include "cli/options.h"

namespace coxswain {

// `coxswain hooks`: what the options ask for, to be printed: the hooks of this
// program, or the canonical form of a spec. Asks no coordinator. Errors are
// about the hook or the spec that was named.
absl::StatusOr<std::string> DescribeHooks(const HooksOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_HOOKS_H_
