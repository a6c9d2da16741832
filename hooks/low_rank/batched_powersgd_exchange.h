#ifndef COXSWAIN_HOOKS_LOW_RANK_BATCHED_POWERSGD_EXCHANGE_H_
#define COXSWAIN_HOOKS_LOW_RANK_BATCHED_POWERSGD_EXCHANGE_H_

#include <memory>

#include "client/comm/communicator.h"
#include "client/reduce/hook.h"
#include "hooks/low_rank/low_rank_exchange.h"
#include "hooks/low_rank/low_rank_tensor.h"

namespace coxswain {

// The exchange of one bucket in a compressed step (formulas:
// batched_powersgd.h). `matrix` is that of the bucket; its x has no more
// elements than the bucket. Always three calls of Advance.
template <typename T>
std::unique_ptr<Exchange> MakeBatchedPowerSgdExchange(
    const Bucket& bucket, LowRankTensor<T>& matrix, Communicator& communicator,
    const LowRankStep& step);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_BATCHED_POWERSGD_EXCHANGE_H_
