#ifndef COXSWAIN_HOOKS_AVERAGERS_STEPPED_AVERAGER_H_
#define COXSWAIN_HOOKS_AVERAGERS_STEPPED_AVERAGER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/reduce/averager.h"
#include "client/reduce/hook.h"
#include "hooks/scratch.h"

namespace coxswain {

// What the averagers have in common: they count steps, let the ranks agree in
// the first `start_step` of them, and know from the count what comes next.
//
// State: the step, and the model in options["parameters"], a line for each
// parameter, "name float32[3,4]" (rank 0's shard); derived classes add to it.
// Taken over from an averager of the same name with any options.
//
// Step numbers count from 0: call c of AfterOptimizerStep has c calls before
// it, and is the first after warm-up if c == start_step.
class SteppedAverager : public Averager {
 public:
  SteppedAverager(std::string spec, int64_t start_step)
      : spec_(std::move(spec)), start_step_(start_step) {}

  std::string spec() const override { return spec_; }
  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         const std::vector<Span>& values,
                         Communicator& world) override;
  absl::Status AfterOptimizerStep(const std::vector<Span>& values) override;
  absl::Status AverageNow(const std::vector<Span>& values) override;
  int64_t step() const override { return step_; }
  bool averages_next() const override {
    return step_ >= start_step_ && Exchanges(step_);
  }
  bool unites_next() const override {
    return step_ >= start_step_ && Unites(step_);
  }
  bool diverged() const override;
  absl::StatusOr<HookState> SaveState(Communicator& communicator) override;
  absl::Status LoadState(const HookState& state, int rank,
                         int world_size) override;

 protected:
  // Returns whether call `call`, which is not before start_step, exchanges
  // anything, and whether all ranks agree after it.
  virtual bool Exchanges(int64_t call) const = 0;
  virtual bool Unites(int64_t call) const { return Exchanges(call); }

  // The rest of Configure. parameters() and world() are set; `before` are the
  // parameters of the Configure before.
  virtual absl::Status Connect(const std::vector<ParameterSpec>& /*before*/,
                               const std::vector<Span>& /*values*/) {
    return absl::OkStatus();
  }
  // What call `call` does where it exchanges; by default the mean over all
  // ranks, as Unite does.
  virtual absl::Status Average(int64_t call, const std::vector<Span>& values);
  // Brings all ranks together.
  virtual absl::Status Unite(const std::vector<Span>& values);
  // The end of a step, which step() counts already.
  virtual void EndStep(const std::vector<Span>&) {}
  // What there is besides the step.
  virtual void SaveTensors(int /*rank*/, int /*world_size*/, HookState&) const {
  }
  virtual absl::Status LoadTensors(const HookState&) {
    return absl::OkStatus();
  }

  int64_t start_step() const { return start_step_; }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  Communicator& world() const { return *world_; }
  ScratchPool& scratch() { return scratch_; }

 private:
  absl::Status CheckValues(const std::vector<Span>& values) const;

  const std::string spec_;
  const int64_t start_step_;
  std::vector<ParameterSpec> parameters_;
  Communicator* world_ = nullptr;
  ScratchPool scratch_;
  int64_t step_ = 0;
  int64_t united_at_ = 0;  // step() at the last AverageNow
};

// FAILED_PRECONDITION: a saved state does not fit.
absl::Status StateMismatch(const std::string& spec, const std::string& why);

// Returns the gradient side of the averagers: the plain average over all ranks
// in the first `start_step` steps; afterwards the plain average within the
// block of `group` consecutive ranks that a rank belongs to, or no exchange at
// all where `group` is 1. The last block has what remains of the ranks.
//
// The blocks are split off the communicator in the first step that needs them
// after Configure: all ranks prepare that step. The state is the step alone.
std::unique_ptr<Hook> MakeLocalGradientsHook(std::string spec,
                                             int64_t start_step, int64_t group);

// Returns the ranks of the block of `group` consecutive ones that has `rank`.
std::vector<int> BlockOf(int rank, int size, int64_t group);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_AVERAGERS_STEPPED_AVERAGER_H_
