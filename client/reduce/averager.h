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

// The extension point for what acts on parameters after the optimizer step
// (local SGD, DiLoCo), beside Hook, which acts on gradients before it.
//
// Life-cycle: Configure, then AfterOptimizerStep once per optimizer step, and
// AverageNow where the ranks have to agree in between; Configure again when the
// parameters, the world size or the generation change. State is kept by
// parameter name, shape and type, and survives that.
//
// Threading: one thread at a time, the one that trains, while no other
// thread starts collectives. All ranks make the same calls: whether a step
// averages is a pure function of the steps counted so far and the averager's
// options. After a step that averages over all ranks they hold the same bits.
//
// `values` are the elements of the parameters in registration order, with the
// types and counts that Configure was given; in the CPU's memory.
class Averager {
 public:
  virtual ~Averager() = default;

  // Returns the canonical spec: parsing it gives an equal averager.
  virtual std::string spec() const = 0;

  // Sets the model's parameters, and their values, which are equal on all ranks
  // if no step was counted yet. `world` outlives the averager or the next
  // Configure; groups within it are split off it, so all ranks call this.
  virtual absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                                 const std::vector<Span>& values,
                                 Communicator& world) = 0;

  // Counts a step, and updates the values in place where it averages. Errors
  // are those of the communicator; the values are then undefined, and the step
  // is not counted.
  virtual absl::Status AfterOptimizerStep(const std::vector<Span>& values) = 0;

  // Averages now if the ranks' values differ: before a test of the model or a
  // checkpoint of its parameters, and at the end of training. Counts no step
  // and does not change when the others are averaged. Does nothing if the ranks
  // agree. Errors as AfterOptimizerStep.
  virtual absl::Status AverageNow(const std::vector<Span>& values) = 0;

  // Returns the number of optimizer steps so far.
  virtual int64_t step() const = 0;
  // Returns whether the next AfterOptimizerStep exchanges anything, on some
  // rank.
  virtual bool averages_next() const = 0;
  // Returns whether all ranks hold the same values after the next
  // AfterOptimizerStep, although each has stepped by gradients of its own.
  virtual bool unites_next() const { return averages_next(); }
  // Returns whether the ranks may hold different values.
  virtual bool diverged() const = 0;

  // As Hook::SaveState and Hook::LoadState. The state does not include local
  // steps since the ranks agreed last: call AverageNow before.
  virtual absl::StatusOr<HookState> SaveState(Communicator& communicator) = 0;
  virtual absl::Status LoadState(const HookState& state, int rank,
                                 int world_size) = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_AVERAGER_H_
