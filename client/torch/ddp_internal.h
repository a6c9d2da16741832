#ifndef COXSWAIN_CLIENT_TORCH_DDP_INTERNAL_H_
#define COXSWAIN_CLIENT_TORCH_DDP_INTERNAL_H_

#include <torch/csrc/autograd/function.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/reduce/averager.h"
#include "client/reduce/bucket_layout.h"
#include "client/reduce/hook.h"
#include "client/reduce/reducer.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/distributed_data_parallel_options.h"
#include "schedule/plan.h"

// Shared by the sources of DistributedDataParallel, and used nowhere else.

namespace coxswain::torch {

// Returns the plan that the job begins with.
schedule::Plan PlanOf(const DistributedDataParallelOptions& options);

// Fails with INVALID_ARGUMENT if options contradict each other, the plan, the
// hook or the averager, which may be null.
absl::Status CheckPlan(const DistributedDataParallelOptions& options,
                       const schedule::Plan& plan, int world_size,
                       const Hook& hook, const Averager* averager);

// Fails with INVALID_ARGUMENT, naming both values, if the options ask for
// something else than the plan that they follow, unless an operator has changed
// it.
absl::Status CheckAskedFor(const DistributedDataParallelOptions& options);

// Fails with INVALID_ARGUMENT if the program's make_hook makes another hook of
// its plan than `hook`, which would then be replaced by it at some change of
// the plan.
absl::Status CheckPlannedHook(const DistributedDataParallelOptions& options,
                              const Hook& hook);

// Returns the options of DistributedDataParallel's own that must be equal on
// all ranks.
std::map<std::string, std::string> AgreedSettings(
    const DistributedDataParallelOptions& options);

// The .grad of one parameter, and its place in a bucket. Either .grad is a
// view of that place, or a tensor of its own, which is copied there and back
// once in a step. Used by DistributedDataParallel.
//
// Between Point and Release all methods but Mark may throw what libtorch
// throws.
//
// Threading: one thread at a time. Mark hands the gradient over to the
// reducer's exchange thread, until the step's end.
class ParameterGradient {
 public:
  // `sharded`: no rank gets all of the average, so .grad is undefined once it
  // has been exchanged.
  ParameterGradient(const ::torch::Tensor& parameter, bool as_view,
                    bool sharded)
      : parameter_(parameter), as_view_(as_view), sharded_(sharded) {}

  const ::torch::Tensor& parameter() const { return parameter_; }
  bool defined() const { return parameter_.grad().defined(); }

  // Sets the place: a .grad that was a view of the place before is one of the
  // new place, whose contents are up to the caller.
  void Point(const GradientPlace& place);

  // Notes that the hook that libtorch calls once .grad is there has begun, with
  // what this was made of, or, with null, has ended.
  void NoteHook(const ::torch::Tensor* incoming) { incoming_ = incoming; }

  // Gives this .grad memory of its own. Called in a pass, once .grad is there:
  // libtorch may give two parameters gradients in the same memory (of a +
  // b.view(...), for example), which fails when one of them is written to.
  void Separate();

  // After a pass that does not exchange: sums up in the bucket, if .grad is to
  // be a view.
  void Adopt();

  // Marks .grad, which is defined, as parameter `index` of the reducer. Those
  // of unused parameters can still be left as they are, afterwards. Fails with
  // UNIMPLEMENTED for a sparse gradient.
  absl::Status Mark(Reducer& reducer, int index, bool used);
  // Marks zeros, without touching .grad, which is undefined.
  absl::Status MarkZeros(Reducer& reducer, int index);

  // Keeps .grad before a step that overwrites the place, in case it has to
  // stay.
  void SetAside();

  // After the exchange, one of them is called: .grad is the average, is as it
  // was, or, if sharded, is undefined.
  void TakeAverage();
  // After TakeAverage, once the average has been clipped in its place.
  void TakeClipped();
  void LeaveAsItWas();
  void Drop();

  // Makes .grad a tensor of its own.
  void Release();

 private:
  // Returns whether .grad is the view, or could be.
  bool InPlace(const ::torch::Tensor& gradient) const;
  // Returns whether no other tensor shares the memory of .grad, which is dense.
  bool Alone() const;
  void CopyToPlace();
  absl::Status Give(Reducer& reducer, int index, bool used);

  ::torch::Tensor parameter_;
  const bool as_view_;
  const bool sharded_;
  // In the hook: see NoteHook.
  const ::torch::Tensor* incoming_ = nullptr;
  ::torch::Tensor view_;
  // Where the reducer puts the average.
  ::torch::Tensor outside_;
  // The .grad to restore if the parameter proves to be unused.
  ::torch::Tensor aside_;
};

// What DistributedDataParallel's sources know of a trainable parameter.
struct DistributedDataParallel::Parameter {
  Parameter(const ::torch::Tensor& tensor, bool as_view, bool sharded)
      : gradient(tensor, as_view, sharded) {}

  int index = 0;
  ParameterGradient gradient;
  // Whether a pass since the last exchange gave it a gradient.
  bool used = false;
  // sync_each_batch: the sum of the window's averages, while .grad is that of
  // the current micro-batch.
  ::torch::Tensor averages;
  // Kept alive, since libtorch only holds it weakly between passes.
  std::shared_ptr<::torch::autograd::Node> accumulate_grad;
  uintptr_t hook_key = 0;
  // Null without the option.
  std::unique_ptr<::torch::optim::Optimizer> optimizer;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_DDP_INTERNAL_H_
