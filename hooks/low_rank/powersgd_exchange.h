#ifndef COXSWAIN_HOOKS_LOW_RANK_POWERSGD_EXCHANGE_H_
#define COXSWAIN_HOOKS_LOW_RANK_POWERSGD_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/comm/communicator.h"
#include "client/reduce/hook.h"
#include "hooks/low_rank/powersgd_matrix.h"
#include "hooks/scratch.h"

namespace coxswain {

// One gradient of a bucket. `matrix` is null if it travels raw.
template <typename T>
struct PowerSgdPart {
  Span gradient;
  LowRankMatrix<T>* matrix = nullptr;
};

// The exchange of one bucket in a compressed step (formulas: powersgd.h). T
// is float, or double if the gradients are. Always three calls of Advance; a
// bucket without matrices has nothing to send in the second. `step` is the
// number of committed steps. Config and scratch outlive the exchange.
template <typename T>
std::unique_ptr<Exchange> MakePowerSgdExchange(
    std::vector<PowerSgdPart<T>> parts, Communicator& communicator,
    const PowerSgdConfig& config, int64_t step, ScratchPool& scratch);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_POWERSGD_EXCHANGE_H_
