#ifndef COXSWAIN_HOOKS_LOW_RANK_POWERSGD_EXCHANGE_H_
#define COXSWAIN_HOOKS_LOW_RANK_POWERSGD_EXCHANGE_H_

#include <memory>
#include <vector>

#include "client/comm/communicator.h"
#include "client/reduce/hook.h"
#include "hooks/low_rank/low_rank_exchange.h"
#include "hooks/low_rank/low_rank_tensor.h"

namespace coxswain {

// The exchange of one bucket in a compressed step (formulas: powersgd.h).
// `tensors` are those of the bucket's gradients, in order. Always three calls
// of Advance; a bucket without matrices has nothing to send in the second.
template <typename T>
std::unique_ptr<Exchange> MakePowerSgdExchange(
    const Bucket& bucket, std::vector<LowRankTensor<T>*> tensors,
    Communicator& communicator, const LowRankStep& step);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_POWERSGD_EXCHANGE_H_
