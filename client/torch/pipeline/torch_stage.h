#ifndef COXSWAIN_CLIENT_TORCH_PIPELINE_TORCH_STAGE_H_
#define COXSWAIN_CLIENT_TORCH_PIPELINE_TORCH_STAGE_H_

#include <torch/types.h>

#include <functional>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "client/pipeline/stage_runner.h"

namespace coxswain::torch {

using Tensors = std::vector<::torch::Tensor>;

// A stage of a pipeline that libtorch computes. Passes tensors of the CPU on:
// floating-point ones come back as gradients, integers have none. Between
// stages on one rank memory is shared, so a stage does not write to its inputs
// in place.
//
// Gradients of the parameters add up in .grad, micro-batch by micro-batch in
// the order of the schedule's backward passes.
//
// Threading: one thread. Errors of libtorch become INTERNAL; nothing is thrown.
class TorchStage : public StageRunner {
 public:
  // Computes a micro-batch's outputs from its inputs. May throw.
  using Compute = std::function<Tensors(const Tensors& inputs)>;
  // Computes the loss of a micro-batch, a scalar, of which the backward pass is
  // run: multiplied by what it counts among the micro-batches. May throw.
  using Loss =
      std::function<::torch::Tensor(int micro_batch, const Tensors& outputs)>;

  explicit TorchStage(Compute compute) : compute_(std::move(compute)) {}

  // Of the first stage, before each step: the inputs by micro-batch.
  void SetInputs(std::vector<Tensors> inputs) {
    inputs_ = std::move(inputs);
    is_first_ = true;
  }
  // Of the last stage.
  void SetLoss(Loss loss) { loss_ = std::move(loss); }
  // Of the last stage, after a step: its losses by micro-batch, without graphs.
  const std::map<int, ::torch::Tensor>& losses() const { return losses_; }

  absl::Status Begin(int micro_batches) override;
  absl::Status Forward(int micro_batch, Activations inputs,
                       Activations* outputs) override;
  absl::Status Backward(int micro_batch, Activations output_gradients,
                        Activations* input_gradients) override;
  void Reset() override;

 private:
  // What a micro-batch's backward pass needs.
  struct Kept {
    Tensors inputs;
    Tensors outputs;
    ::torch::Tensor loss;
  };

  const Compute compute_;
  Loss loss_;
  bool is_first_ = false;
  std::vector<Tensors> inputs_;
  std::map<int, Kept> kept_;
  std::map<int, ::torch::Tensor> losses_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PIPELINE_TORCH_STAGE_H_
