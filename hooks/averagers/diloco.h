#ifndef COXSWAIN_HOOKS_AVERAGERS_DILOCO_H_
#define COXSWAIN_HOOKS_AVERAGERS_DILOCO_H_

#include "hooks/hook_row.h"

namespace coxswain {

// `diloco` (Douillard and others: "DiLoCo: Distributed Low-Communication
// Training of Language Models", arXiv:2311.08105, algorithm 1). From step
// start_step on, each rank takes `inner_steps` optimizer steps on its own; then
// all take one outer step from the parameters that they agreed on last:
//
//   g     = mean over the ranks of (outer - local)
//   m     = outer_momentum m + g
//   outer = outer - outer_lr (g + outer_momentum m)      or m, not nesterov
//
// which is torch.optim.SGD's momentum with dampening 0, and all ranks go on
// from `outer`. With outer_lr 1 and outer_momentum 0 the ranks average their
// parameters. The inner optimizer's state stays each rank's own.
//
// Differences are divided by the number of ranks before they are summed; g, m
// and outer are float32, or float64 for float64 parameters. 16-bit parameters
// are outer, rounded.
//
// Gradients: all-reduce over all ranks before start_step, none afterwards.
// AverageNow takes the outer step early, with what the ranks have done so far.
//
// State, besides the step, from start_step on, each in its parameter's shape;
// rank k saves every k-th parameter, and any number of ranks takes it over:
//   "outer"           the parameters that the ranks agreed on last
//   "outer_momentum"  m
HookRow DilocoRow();

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_AVERAGERS_DILOCO_H_
