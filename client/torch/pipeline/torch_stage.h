#ifndef COXSWAIN_CLIENT_TORCH_PIPELINE_TORCH_STAGE_H_
#define COXSWAIN_CLIENT_TORCH_PIPELINE_TORCH_STAGE_H_

#include <torch/types.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pipeline/stage_runner.h"

namespace coxswain::torch {

using Tensors = std::vector<::torch::Tensor>;

// A parameter that a layer computes with.
struct StageParameter {
  ::torch::Tensor used;
  // To whose .grad its gradient is added: itself, or what it is tied to.
  ::torch::Tensor trained;
};

// A layer of a stage, or all of it.
struct StageLayer {
  // Computes a micro-batch's outputs from its inputs. May throw.
  std::function<Tensors(const Tensors& inputs)> compute;
  // For backward passes in halves: all that are trained.
  std::vector<StageParameter> parameters;
};

// A stage of a pipeline that libtorch computes. Passes tensors of the CPU on:
// floating-point ones come back as gradients, integers have none. Between
// stages on one rank memory is shared, so a stage does not write to its inputs
// in place.
//
// Gradients of the parameters add up in .grad, micro-batch by micro-batch in
// the order of the schedule's backward passes. In a step that has some in
// halves, each layer has a graph of its own: the first half goes from layer to
// layer, and keeps what arrives at each; the second one computes the
// parameters' gradients from that, and adds them without autograd's hooks; a
// whole backward pass is then both of them.
//
// Threading: one thread. Errors of libtorch become INTERNAL; nothing is thrown.
class TorchStage : public StageRunner {
 public:
  using Compute = std::function<Tensors(const Tensors& inputs)>;
  // Computes the loss of a micro-batch, a scalar, of which the backward pass is
  // run: multiplied by what it counts among the micro-batches. Undefined: it
  // counts for nothing, and no gradients come of it. May throw.
  using Loss =
      std::function<::torch::Tensor(int micro_batch, const Tensors& outputs)>;

  // Backward passes of it are whole: without layers nothing is known of its
  // parameters.
  explicit TorchStage(Compute compute) : layers_{{std::move(compute), {}}} {}
  // These layers, one after the other.
  explicit TorchStage(std::vector<StageLayer> layers)
      : layers_(std::move(layers)), splits_(true) {}

  // Of the first stage, before each step: the inputs by micro-batch.
  void SetInputs(std::vector<Tensors> inputs) {
    inputs_ = std::move(inputs);
    is_first_ = true;
  }
  // Of the last stage.
  void SetLoss(Loss loss) { loss_ = std::move(loss); }
  // Between steps: from now on they have forward passes only. Backward passes
  // return at once, without gradients.
  void SetForwardOnly(bool forward_only) { forward_only_ = forward_only; }
  // Of the last stage, after a step: its losses by micro-batch, without graphs;
  // without those that were undefined.
  const std::map<int, ::torch::Tensor>& losses() const { return losses_; }

  absl::Status Begin(int micro_batches, bool halves) override;
  absl::Status Forward(int micro_batch, Activations inputs,
                       Activations* outputs) override;
  absl::Status Backward(int micro_batch, Activations output_gradients,
                        Activations* input_gradients) override;
  bool splits_backward() const override { return splits_; }
  absl::Status BackwardInput(int micro_batch, Activations output_gradients,
                             Activations* input_gradients) override;
  absl::Status BackwardWeight(int micro_batch) override;
  void Reset() override;

 private:
  // A graph that gradients pass through at once: a layer's, or the stage's.
  struct Part {
    Tensors inputs;
    Tensors outputs;
    Tensors output_gradients;  // once they have come
  };
  // What a micro-batch's backward pass needs.
  struct Kept {
    std::vector<Part> parts;
    bool halves = false;  // a part for each layer; otherwise one
    Tensors outputs;      // what the loss was computed from
    ::torch::Tensor loss;
  };

  // May throw.
  Tensors Run(const Tensors& inputs, Kept* kept) const;
  absl::StatusOr<Kept> TakeKept(int micro_batch, size_t output_gradients);
  // Returns the gradients of what the loss was computed from. May throw.
  Tensors OfOutputs(const Kept& kept, Activations output_gradients) const;
  // Returns what goes to the stage before. May throw.
  absl::StatusOr<Activations> OfInputs(const Tensors& gradients) const;

  const std::vector<StageLayer> layers_;
  const bool splits_ = false;
  Loss loss_;
  bool is_first_ = false;
  bool halves_ = false;  // in this step
  bool forward_only_ = false;
  std::vector<Tensors> inputs_;
  std::map<int, Kept> kept_;
  // Those whose first half has run.
  std::map<int, std::vector<Part>> half_done_;
  std::map<int, ::torch::Tensor> losses_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PIPELINE_TORCH_STAGE_H_
