#ifndef COXSWAIN_CLIENT_REDUCE_AVERAGER_H_
#define COXSWAIN_CLIENT_REDUCE_AVERAGER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"

namespace coxswain {

// The socket for what acts on parameters after the optimizer step (local SGD,
// DiLoCo), beside the Hook socket, which acts on gradients before it.
//
// Life-cycle and threading: called by the training thread after each optimizer
// step, with the same `step` on all ranks. Whether a step averages is a pure
// function of `step` and the averager's options, so all ranks agree.
class Averager {
 public:
  virtual ~Averager() = default;

  // The canonical spec.
  virtual std::string spec() const = 0;

  // `values[i]` are the elements of parameter i, updated in place where this
  // step averages. Errors are those of the communicator.
  virtual absl::Status AfterOptimizerStep(
      int64_t step, const std::vector<ParameterSpec>& parameters,
      const std::vector<Span>& values, Communicator& communicator) = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_AVERAGER_H_
