#ifndef COXSWAIN_HOOKS_INT8_INT8_EXCHANGE_H_
#define COXSWAIN_HOOKS_INT8_INT8_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/comm/communicator.h"
#include "client/reduce/hook.h"
#include "hooks/int8/int8_errors.h"
#include "hooks/scratch.h"

namespace coxswain {

// What one bucket's exchange needs to know of its hook. All of it outlives
// the exchange.
struct Int8Context {
  const std::string& spec;
  const std::vector<ParameterSpec>& parameters;
  ScratchPool& scratch;
  std::vector<NonFiniteGradient>& non_finite;  // appended to
  int64_t step = 0;                            // committed ones
  int64_t block = 0;
  bool error_feedback = true;
};

// The exchange of one bucket (formulas: int8.h). T is float, or double if the
// gradients are. `state` has an entry per gradient of the bucket, in order.
// Three calls of Advance; a bucket that is not finite takes a fourth, on all
// ranks.
template <typename T>
std::unique_ptr<Exchange> MakeInt8Exchange(const Bucket& bucket,
                                           Communicator& communicator,
                                           std::vector<Int8Parameter<T>*> state,
                                           const Int8Context& context);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_INT8_INT8_EXCHANGE_H_
