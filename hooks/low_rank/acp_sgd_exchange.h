#ifndef COXSWAIN_HOOKS_LOW_RANK_ACP_SGD_EXCHANGE_H_
#define COXSWAIN_HOOKS_LOW_RANK_ACP_SGD_EXCHANGE_H_

#include <memory>
#include <vector>

#include "client/comm/communicator.h"
#include "client/reduce/hook.h"
#include "hooks/low_rank/low_rank_exchange.h"
#include "hooks/low_rank/low_rank_tensor.h"

namespace coxswain {

// The exchange of one bucket in a compressed step (formulas: acp_sgd.h).
// `tensors` are those of the bucket's gradients, in order. Two calls of
// Advance, and a third in a step that is not finite, on all ranks alike.
template <typename T>
std::unique_ptr<Exchange> MakeAcpSgdExchange(
    const Bucket& bucket, std::vector<LowRankTensor<T>*> tensors,
    Communicator& communicator, const LowRankStep& step);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_ACP_SGD_EXCHANGE_H_
