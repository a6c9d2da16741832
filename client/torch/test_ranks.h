#ifndef COXSWAIN_CLIENT_TORCH_TEST_RANKS_H_
#define COXSWAIN_CLIENT_TORCH_TEST_RANKS_H_

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/reduce/hook.h"
#include "client/torch/distributed_data_parallel.h"
#include "schedule/plan.h"
#include "schedule/step_gate.h"

namespace coxswain::torch {

// For the tests of this folder.

constexpr absl::Duration kSoon = absl::Seconds(30);

// Averages buckets of any type. With `whole`, each rank sends whole numbers
// only and adds the rest to its next gradient: an error feedback, which needs
// the layout to stay.
class AverageHook : public Hook {
 public:
  explicit AverageHook(bool whole = false) : whole_(whole) {}

  std::string spec() const override { return whole_ ? "whole" : "average"; }
  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override;
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override;
  absl::Status Commit() override;
  void Rollback() override { ++rollbacks_; }
  int64_t step() const override { return step_; }
  bool needs_frozen_layout() const override { return whole_; }
  absl::StatusOr<HookState> SaveState(Communicator&) override;
  absl::Status LoadState(const HookState& state, int rank,
                         int world_size) override;

  int configured() const { return configured_; }
  int rollbacks() const { return rollbacks_; }

 private:
  const bool whole_;
  std::vector<::torch::Tensor> errors_;  // by bucket
  int world_size_ = 0;
  int configured_ = 0;
  int64_t step_ = 0;
  int rollbacks_ = 0;
};

// A rank, in a thread of its own.
struct TestRank {
  int index = 0;
  int size = 1;
  Communicator* communicator = nullptr;
};
void OnRanks(int size, const std::function<void(const TestRank&)>& body);

// Options for tests: buckets so small that there are several.
DistributedDataParallelOptions SmallBuckets(bool view);

// Returns a plan of the job, of version 1.
schedule::Plan PlanOf(int accumulation_steps,
                      const schedule::Terms& terms = {});

// SmallBuckets that follow the plan, and this rank's gate if there is one. The
// hooks that plans may name are "average" and "whole".
DistributedDataParallelOptions Following(const schedule::Plan& plan,
                                         schedule::StepGate* gate = nullptr);

// With an AverageHook; a failed Create is a failed test.
std::unique_ptr<DistributedDataParallel> Wrap(
    const TestRank& rank, std::shared_ptr<::torch::nn::Module> module,
    const DistributedDataParallelOptions& options);

// d(sum(w * x))/dw = x: parameters of two elements, whose gradients are easy
// to see.
struct Weights : ::torch::nn::Module {
  explicit Weights(const std::vector<std::string>& names);
  // Adds up weights of these names, times x.
  ::torch::Tensor Use(const std::vector<std::string>& names, double x);
  ::torch::Tensor weight(const std::string& name);
  // Returns an element of its .grad; NaN if that is undefined.
  double Gradient(const std::string& name);
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_TEST_RANKS_H_
