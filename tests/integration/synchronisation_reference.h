#ifndef COXSWAIN_TESTS_INTEGRATION_SYNCHRONISATION_REFERENCE_H_
#define COXSWAIN_TESTS_INTEGRATION_SYNCHRONISATION_REFERENCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/conformance/hook_world.h"
#include "tests/integration/synchronisation_net.h"
#include "tests/integration/synchronisation_rank.h"

namespace coxswain {

// How a backward pass ought to go.
struct PlannedPass {
  // Numbers of the batches whose losses are added up, as Deal deals them; none
  // where there is an exchange alone.
  std::vector<int> batches;
  int divisor = 1;     // of the loss
  double rescale = 1;  // of the gradients, before they are exchanged
  bool exchange = true;
  bool commit = true;  // the hook's step, if it exchanges
  bool step = false;   // an optimizer step follows, and the gradients' end
  bool drop = false;   // their end without a step
};

// Returns the passes of windows of these lengths, each of the next batch: the
// last one of a window exchanges, and a step follows.
std::vector<PlannedPass> Windows(const std::vector<int>& lengths,
                                 int first_batch = 0);

// What a job would do if it had no reducer and no threads. Two oracles:
//
//  - For each rank a network that libtorch trains alone. Where a pass
//    exchanges, what they summed up goes through the hook in the hook's own
//    test bench (HookWorld), with the job's buckets. Ranks must have the same
//    bits, after every pass, with every hook.
//  - One network that libtorch trains on all ranks' batches at once. With a
//    hook that loses nothing, gradients must agree with it after the passes
//    that exchange, and must not after the others.
//
// And no hook may lose more than its kind does: results of those without error
// feedback are near the mean of what the ranks gave, and what those with it
// have left out in all is what they still keep.
class Reference {
 public:
  explicit Reference(const Setting& setting, const Tensors& start);

  // Compares what the ranks recorded with the plan. A failure fails the test.
  void Check(const std::vector<PlannedPass>& plan,
             const std::vector<std::unique_ptr<TestRank>>& ranks);

 private:
  struct Twin {
    explicit Twin(const Tensors& start);
    std::shared_ptr<TinyNet> net;
    std::unique_ptr<Optimizer> optimizer;
  };

  void Backward(const PlannedPass& planned);
  void Exchange(const PlannedPass& planned, const HookWorld::Buckets& buckets);
  void CheckResults(const std::vector<Gradients>& sums,
                    const std::vector<Gradients>& results, bool started);
  // Called after the last pass.
  void CheckErrorFeedback();
  void CheckGradients(const PlannedPass& planned,
                      const std::vector<const Pass*>& passes);
  void CheckApart(const std::vector<const Pass*>& passes);
  void Step(const std::vector<const Pass*>& passes);
  void CheckAverager(const std::vector<const Pass*>& passes);

  const Setting setting_;
  std::vector<std::vector<Samples>> data_;  // by rank
  std::vector<Twin> twins_;                 // by rank
  Twin alone_;
  std::vector<ParameterSpec> parameters_;
  std::unique_ptr<HookWorld> world_;
  HookWorld::Buckets buckets_;
  int layouts_ = 0;  // so far
  // Sums over all exchanges.
  Gradients given_;    // of the means of what the ranks gave
  Gradients got_;      // of the results
  int64_t steps_ = 0;  // of the optimizer
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_INTEGRATION_SYNCHRONISATION_REFERENCE_H_
