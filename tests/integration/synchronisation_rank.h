#ifndef COXSWAIN_TESTS_INTEGRATION_SYNCHRONISATION_RANK_H_
#define COXSWAIN_TESTS_INTEGRATION_SYNCHRONISATION_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <vector>

#include "client/comm/communicator.h"
#include "client/data/sampler.h"
#include "client/torch/distributed_data_parallel.h"
#include "tests/conformance/hook_world.h"
#include "tests/hooks/every_hook.h"
#include "tests/integration/synchronisation_net.h"

namespace coxswain {

// One job of the synchronisation tests.
struct Setting {
  AnyHook hook;
  int size = 1;
  bool view = false;  // gradient_as_bucket_view
};

inline void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.hook.spec << " on " << setting.size << " ranks";
}

// What a rank saw of one backward pass.
struct Pass {
  bool exchanged = false;  // whether its MicroBatch, or its NoSync scope, syncs
  HookWorld::Buckets buckets;  // as they were before
  int64_t bytes = 0;           // handed to collectives meanwhile
  int64_t hook_step = 0;       // afterwards
  Tensors gradients;           // afterwards
  // Where an optimizer step followed:
  bool stepped = false;
  Tensors trained;        // the parameters after it
  Tensors averaged;       // and after AfterOptimizerStep
  bool diverged = false;  // the averager's diverged() then
  double rate = 0;        // that the next step will have
};

// A rank of a job, with a network that no other rank has, and a record of its
// passes. One thread at a time. A failure fails the test.
class TestRank {
 public:
  TestRank(const Setting& setting, int rank, std::unique_ptr<Communicator>);

  // Makes the wrapper; all ranks do.
  void Wrap(int accumulation_steps);

  TinyNet& net() { return *net_; }
  torch::DistributedDataParallel& ddp() { return *ddp_; }
  ShardedSampler& sampler() { return sampler_; }
  Optimizer& optimizer() { return optimizer_; }
  Communicator& communicator() { return *communicator_; }
  const Tensors& start() const { return start_; }
  const std::vector<Pass>& passes() const { return passes_; }

  // Returns the sampler's next batch, of the next epoch if need be.
  Samples NextBatch();
  ::torch::Tensor Loss(const Samples& samples) {
    return MeanLoss(*net_, samples);
  }
  // Runs `backward` and records it.
  void Record(bool exchanges, const std::function<absl::Status()>& backward);
  // Calls ddp().Backward and records it.
  void Backward(const ::torch::Tensor& loss, bool exchanges);
  // Steps of the optimizer, its schedule and the averager, and cleared
  // gradients, as part of the pass recorded last.
  void Step();

 private:
  const Setting setting_;
  const std::unique_ptr<Communicator> communicator_;
  const std::shared_ptr<TinyNet> net_;
  ShardedSampler sampler_;
  Optimizer optimizer_;
  std::unique_ptr<torch::DistributedDataParallel> ddp_;
  Tensors start_;  // the parameters that all ranks begin with
  std::vector<Pass> passes_;
  int steps_ = 0;
};

// Wraps the networks of a job and runs `program` on each rank, in a thread of
// its own. Returns the ranks.
std::vector<std::unique_ptr<TestRank>> RunJob(
    const Setting& setting, int accumulation_steps,
    const std::function<void(TestRank&)>& program);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_INTEGRATION_SYNCHRONISATION_RANK_H_
