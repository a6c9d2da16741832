#ifndef COXSWAIN_HOOKS_AVERAGERS_HIERARCHICAL_SGD_H_
#define COXSWAIN_HOOKS_AVERAGERS_HIERARCHICAL_SGD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "hooks/hook_row.h"

namespace coxswain {

// `hierarchical_sgd`: local SGD with groups of growing size (hierarchical SGD,
// arXiv:2010.12998; PyTorch's HierarchicalModelAverager). Each level has a
// period and a size of its groups, which are blocks of consecutive ranks:
// `levels=2x4+8xall` averages the parameters of every four ranks at every
// second step, and those of all ranks at every eighth. A step uses only the
// largest period that divides its number.
//
// As in PyTorch, step numbers count from the beginning of training and not
// from start_step: the first average comes at the first multiple of the
// smallest period that is not before start_step. Step 0 is a multiple of all.
//
// Gradients: all-reduce over all ranks before start_step, none afterwards; a
// level of period 1 averages parameters at every step instead. State of both
// sides: the step.
HookRow HierarchicalSgdRow();

// One level; a size of 0 means all ranks.
struct AveragingLevel {
  int64_t period = 0;
  int64_t size = 0;
};

// Reads PERIODxSIZE[+PERIODxSIZE...], smallest first. INVALID_ARGUMENT unless
// periods and sizes grow, each divides the next, and only the last size is
// `all`.
absl::StatusOr<std::vector<AveragingLevel>> ParseLevels(absl::string_view text);
std::string LevelsText(const std::vector<AveragingLevel>& levels);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_AVERAGERS_HIERARCHICAL_SGD_H_
