#ifndef COXSWAIN_HOOKS_LOW_RANK_POWERSGD_H_
#define COXSWAIN_HOOKS_LOW_RANK_POWERSGD_H_

#include "hooks/hook_row.h"

namespace coxswain {

// `powersgd`: low-rank gradients with error feedback (Vogels, Karimireddy,
// Jaggi: "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
// Optimization", NeurIPS 2019).
//
// A gradient of two or more dimensions is a matrix of n = shape[0] rows and m
// columns. With r = min(n, m, rank) it is compressed iff
// (n + m) r min_compression_rate < n m; all else travels raw. With W ranks,
// in step t >= start_step:
//   X = G + E            this rank's gradient and error
//   Q = orth(Q)          from the step before, or drawn from (seed, name, t)
//   P = orth(mean(X Q))
//   q = transpose(X) P
//   Q = mean(q);         the result is P transpose(Q)
// and the error that is left for the next step:
//   mode=local    E = X - P transpose(q). Contributions are divided by W before
//                 they are summed. Raw tensors are averaged exactly and have
//                 no error. Each rank's error stays bounded.
//   mode=pytorch  E = X - P transpose(Q), and for raw tensors too E = X - mean.
//                 Sums are divided afterwards, as PyTorch does. The results
//                 are the same but for rounding; only the mean of the errors is
//                 bounded, each rank's own wanders off.
// Steps before start_step are plain averages.
//
// Everything is float32 for float32 and 16-bit gradients, float64 for float64;
// 16-bit gradients travel in their own type. E is not computed in its step:
// X, P and q are kept, and the next step forms X = G + X - P transpose(q)
// while it computes X Q. Per element of a float32 matrix that reads G and X and
// writes X (12 bytes), reads X for q (4) and writes the result (4). X has two
// places that take turns, so that a rollback moves no byte; it costs 4 bytes an
// element of memory.
//
// Not finite: if a gradient of a bucket is infinite or NaN on any rank, a sum
// overflows or a factor nears the largest number, all ranks get a bucket full
// of NaN, so that the trainer sees it, and error and Q of the bucket stay as
// they were. If it shows in the first sum, the second collective finds whose
// gradients it were (low_rank_exchange.h). If it was no rank's three times in
// a row, errors have grown too large to be sent, and are dropped
// (low_rank_state.h).
//
// Buckets in a GPU's memory are exchanged there, by kernels with the same
// formulas: the same but for rounding, and for an infinity or NaN in the first
// sum, after which Q travels too before the host looks
// (device_powersgd.h). All else here is the same, checkpoints as well.
//
// State: the mean error over the ranks, each rank saving its shard of the
// parameters, and Q. LoadState gives one rank, by the parameter's name, W'
// times its mean error under the new world size W' and the others zero,
// which leaves the mean as it was; results depend on the errors through
// their mean only. A loaded Q is used in the next step even without
// warm_start. LoadOwn scales errors as hook.h requires; mode=pytorch
// restores them with a scale of 1 and begins without any with another, as a
// new PowerSGDState does: a residual that takes up the rank's distance from
// the mean means nothing without those of all others.
HookRow PowerSgdRow();

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_POWERSGD_H_
