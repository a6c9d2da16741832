#ifndef COXSWAIN_CLIENT_TORCH_PIPELINE_WINDOW_STAGE_H_
#define COXSWAIN_CLIENT_TORCH_PIPELINE_WINDOW_STAGE_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/pipeline/stage_runner.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/tensor/tensor_parallel.h"

namespace coxswain::torch {

// A stage in a declared window of its rank's wrapper: its gradients leave in
// its last backward pass. What fails along tp in a pass is the pass's error.
// Threading: one thread.
class WindowStage : public StageRunner {
 public:
  struct Options {
    // Those that the stage completes, by the wrapper's numbers.
    std::vector<int> parameters;
    // Of the stage's layers; may be null.
    TensorParallelPtr parallel;
    // Called before each pass of a micro-batch, if set.
    std::function<void(int micro_batch)> before_pass;
  };

  // Both outlive it.
  WindowStage(StageRunner* stage, DistributedDataParallel* ddp, Options options)
      : stage_(*stage), ddp_(*ddp), options_(std::move(options)) {}

  // Between steps: whether there is a window from now on. At first there is.
  void SetInWindow(bool in_window) { in_window_ = in_window; }

  absl::Status Begin(int micro_batches, bool halves) override;
  absl::Status Forward(int micro_batch, Activations inputs,
                       Activations* outputs) override;
  absl::Status Backward(int micro_batch, Activations output_gradients,
                        Activations* input_gradients) override;
  bool splits_backward() const override { return stage_.splits_backward(); }
  absl::Status BackwardInput(int micro_batch, Activations output_gradients,
                             Activations* input_gradients) override;
  absl::Status BackwardWeight(int micro_batch) override;
  void Reset() override { stage_.Reset(); }

 private:
  absl::Status Run(int micro_batch, const std::function<absl::Status()>& pass);
  // Runs a pass that adds to gradients.
  absl::Status RunToGradients(int micro_batch,
                              const std::function<absl::Status()>& pass);

  StageRunner& stage_;
  DistributedDataParallel& ddp_;
  const Options options_;
  bool in_window_ = true;
  int left_ = 0;  // of these passes
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PIPELINE_WINDOW_STAGE_H_
