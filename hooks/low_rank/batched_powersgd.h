#ifndef COXSWAIN_HOOKS_LOW_RANK_BATCHED_POWERSGD_H_
#define COXSWAIN_HOOKS_LOW_RANK_BATCHED_POWERSGD_H_

#include "hooks/hook_row.h"

namespace coxswain {

// `batched_powersgd`: PowerSGD of a whole bucket as one matrix, after PyTorch's
// batched_powerSGD_hook.
//
// The L elements of a bucket, vectors and scalars among them, fill the rows of
// a matrix with m = ceil(sqrt(L)) columns and n = ceil(L / m) rows; what is
// left of the last row is zero. With r = min(n, m, rank), the steps are those
// of powersgd.h in mode=local, passes over memory and infinities included. The
// zeros behind the bucket stay zero: they get no error.
//
// Q belongs to the bucket. It is drawn from (seed, names of the parameters, t)
// when there is none for a bucket of these parameters in this order.
//
// State: the mean error by parameter, so that it survives other buckets and
// other numbers of ranks, and Q by bucket. With other buckets the results
// differ from those of an uninterrupted run, as other elements share a matrix,
// and Q begins anew; nothing that was left out is lost.
HookRow BatchedPowerSgdRow();

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_BATCHED_POWERSGD_H_
