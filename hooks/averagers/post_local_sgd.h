#ifndef COXSWAIN_HOOKS_AVERAGERS_POST_LOCAL_SGD_H_
#define COXSWAIN_HOOKS_AVERAGERS_POST_LOCAL_SGD_H_

#include "hooks/hook_row.h"

namespace coxswain {

// `post_local_sgd` (Lin, Stich, Patel, Jaggi: "Don't use large mini-batches,
// use local SGD", arXiv:1808.07217): plain data-parallel training for
// `start_step` steps, then each rank trains on its own and all ranks'
// parameters are averaged every `period` steps. As PyTorch's post_localSGD_hook
// with a PeriodicModelAverager: the first step after warm-up averages, and then
// every `period`-th from there.
//
// Gradients: all-reduce over all ranks before start_step; afterwards within
// blocks of `subgroup` consecutive ranks if `gradient_allreduce`, else none.
// Where `subgroup` does not divide the number of ranks, the last block has
// what remains. Parameters: the mean over all ranks (hooks/averagers/mean.h).
//
// State of both sides: the step. The optimizer's state (momentum) stays each
// rank's own. Only the averager brings the ranks together: a program that runs
// this hook without it trains apart.
HookRow PostLocalSgdRow();

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_AVERAGERS_POST_LOCAL_SGD_H_
