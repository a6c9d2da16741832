#ifndef COXSWAIN_CLIENT_REDUCE_AVERAGER_H_
#define COXSWAIN_CLIENT_REDUCE_AVERAGER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook_state.h"

namespace coxswain {

// The socket for what acts on parameters after the optimizer step (local SGD,
// DiLoCo), beside the Hook socket, which acts on gradients before it.
//
// Life-cycle: Configure, then AfterOptimizerStep once per optimizer step;
// Configure again when the world size or the generation changes.
//
// Threading: one thread at a time, the one that trains. All ranks make the
// same calls: whether a step averages is a pure function of the steps counted
// so far and the averager's options. After a step that averages over all ranks
// they hold the same bits.
class Averager {
 public:
  virtual ~Averager() = default;

  // The canonical spec: parsing it gives an equal averager.
  virtual std::string spec() const = 0;

  // What the model consists of, by registration index. `world` outlives the
  // averager or the next Configure; groups within it are split off it.
  virtual absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                                 Communicator& world) = 0;

  // `values[i]` are the elements of parameter i, updated in place where this
  // step averages. Errors are those of the communicator; the parameters are
  // then of no use, and the step is not counted.
  virtual absl::Status AfterOptimizerStep(const std::vector<Span>& values) = 0;

  // Optimizer steps so far.
  virtual int64_t step() const = 0;
  // Whether the next AfterOptimizerStep exchanges anything.
  virtual bool averages_next() const = 0;

  // As Hook::SaveState and Hook::LoadState.
  virtual absl::StatusOr<HookState> SaveState(Communicator& communicator) = 0;
  virtual absl::Status LoadState(const HookState& state, int rank,
                                 int world_size) = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_AVERAGER_H_
