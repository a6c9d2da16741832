#include "client/torch/pipeline/torch_stage.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

constexpr std::pair<DType, ::torch::ScalarType> kTypes[] = {
    {DType::kFloat32, ::torch::kFloat32},
    {DType::kFloat64, ::torch::kFloat64},
    {DType::kFloat16, ::torch::kFloat16},
    {DType::kBFloat16, ::torch::kBFloat16},
    {DType::kInt8, ::torch::kInt8},
    {DType::kInt32, ::torch::kInt32},
    {DType::kInt64, ::torch::kInt64},
    {DType::kUInt8, ::torch::kUInt8},
};

// Those that stages pass on.
std::optional<DType> TypeOf(::torch::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  return std::nullopt;
}
::torch::ScalarType TypeOf(DType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == type) return theirs;
  }
  return ::torch::kUInt8;
}

bool HasGradient(const ::torch::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point();
}

// Shares the tensor's memory, or a copy's where it is not contiguous.
absl::StatusOr<Activation> ToActivation(const ::torch::Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    return absl::UnimplementedError(
        absl::StrCat("a tensor on ", tensor.device().str(),
                     " cannot be passed on: stages pass tensors of the CPU"));
  }
  const std::optional<DType> dtype = TypeOf(tensor.scalar_type());
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a tensor of ", c10::toString(tensor.scalar_type()),
        " cannot be passed on; of flags make integers (to(torch::kUInt8))"));
  }
  auto held = std::make_shared<::torch::Tensor>(tensor.detach().contiguous());
  void* const data = held->data_ptr();
  return Activation{*dtype, held->sizes().vec(),
                    std::shared_ptr<void>(std::move(held), data)};
}

// Returns an undefined one where it is absent.
::torch::Tensor ToTensor(Activation activation) {
  if (activation.absent) return {};
  const auto options = ::torch::TensorOptions().dtype(TypeOf(activation.dtype));
  if (activation.elements() == 0) {
    return ::torch::empty(activation.dims, options);
  }
  void* const data = activation.memory.get();
  return ::torch::from_blob(
      data, activation.dims, [memory = std::move(activation.memory)](void*) {},
      options);
}

absl::StatusOr<Activations> ToActivations(const Tensors& tensors) {
  Activations result;
  for (const ::torch::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      result.push_back({DType::kFloat32, {}, nullptr, /*absent=*/true});
      continue;
    }
    COXSWAIN_ASSIGN_OR_RETURN(Activation one, ToActivation(tensor));
    result.push_back(std::move(one));
  }
  return result;
}

// Returns them as the inputs of another graph.
Tensors Cut(const Tensors& outputs) {
  Tensors inputs;
  for (const ::torch::Tensor& output : outputs) {
    const bool has_graph = output.defined() && output.requires_grad();
    inputs.push_back(has_graph ? output.detach().requires_grad_() : output);
  }
  return inputs;
}

// Returns the gradients of inputs, or parameters, from those of a graph's
// outputs; undefined where there is none. May throw.
Tensors Gradients(const Tensors& outputs, const Tensors& output_gradients,
                  const Tensors& inputs, bool keep_graph) {
  Tensors roots;
  Tensors from;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad()) continue;
    if (!output_gradients[i].defined()) continue;
    roots.push_back(outputs[i]);
    from.push_back(output_gradients[i]);
  }
  Tensors wanted;
  for (const ::torch::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) wanted.push_back(input);
  }
  Tensors result(inputs.size());
  if (roots.empty() || wanted.empty()) return result;
  const Tensors gradients =
      ::torch::autograd::grad(roots, wanted, from, keep_graph,
                              /*create_graph=*/false, /*allow_unused=*/true);
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    result[i] = gradients[next++];
  }
  return result;
}

// May throw.
void AddTo(const ::torch::Tensor& parameter, const ::torch::Tensor& gradient) {
  if (!gradient.defined()) return;
  const ::torch::NoGradGuard no_grad;
  ::torch::Tensor& sum = parameter.mutable_grad();
  if (sum.defined()) {
    sum.add_(gradient);
  } else {
    // Its memory may be another gradient's, too.
    sum = ::torch::empty_like(parameter).copy_(gradient);
  }
}

}  // namespace

absl::Status TorchStage::Begin(int micro_batches, bool halves) {
  losses_.clear();
  halves_ = halves;
  if (halves && !splits_) {
    return absl::FailedPreconditionError(
        "a stage of one function has no backward passes in halves; make it of "
        "layers, with their parameters");
  }
  if (!is_first_ || inputs_.size() == static_cast<size_t>(micro_batches)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the first stage has inputs for ", inputs_.size(),
                   " micro-batches, and a step has ", micro_batches,
                   "; call SetInputs before each step"));
}

Tensors TorchStage::Run(const Tensors& inputs, Kept* kept) const {
  if (!halves_ || forward_only_) {
    Tensors x = inputs;
    for (const StageLayer& layer : layers_) x = layer.compute(x);
    kept->parts.push_back({inputs, x, {}});
    return x;
  }
  kept->halves = true;
  Tensors x = inputs;
  for (const StageLayer& layer : layers_) {
    Part part;
    part.inputs = x;
    part.outputs = layer.compute(x);
    x = Cut(part.outputs);
    kept->parts.push_back(std::move(part));
  }
  return x;
}

absl::Status TorchStage::Forward(int micro_batch, Activations inputs,
                                 Activations* outputs) {
  if (!is_first_ && inputs.empty()) {
    return absl::FailedPreconditionError(
        "no tensors come in: of the first stage call SetInputs before each "
        "step; another one's predecessor returns none");
  }
  Kept kept;
  absl::StatusOr<Activations> passed = Activations();
  COXSWAIN_RETURN_IF_ERROR(Guarded("the forward pass", [&] {
    const ::torch::AutoGradMode with_graph(!forward_only_);
    Tensors x;
    if (is_first_) x = inputs_[static_cast<size_t>(micro_batch)];
    for (Activation& input : inputs) {
      x.push_back(ToTensor(std::move(input)));
      if (HasGradient(x.back())) x.back().requires_grad_(!forward_only_);
    }
    const Tensors results = Run(x, &kept);
    if (loss_ == nullptr) {
      passed = ToActivations(results);
      return;
    }
    kept.outputs = results;
    kept.loss = loss_(micro_batch, results);
    if (kept.loss.defined()) losses_[micro_batch] = kept.loss.detach();
  }));
  COXSWAIN_ASSIGN_OR_RETURN(*outputs, std::move(passed));
  if (forward_only_) kept = Kept();
  kept_[micro_batch] = std::move(kept);
  return absl::OkStatus();
}

absl::StatusOr<TorchStage::Kept> TorchStage::TakeKept(int micro_batch,
                                                      size_t output_gradients) {
  auto node = kept_.extract(micro_batch);
  if (node.empty()) {
    return absl::FailedPreconditionError("its forward pass has not run");
  }
  Kept kept = std::move(node.mapped());
  if (loss_ != nullptr || forward_only_) return kept;
  const size_t outputs = kept.parts.back().outputs.size();
  if (output_gradients == outputs) return kept;
  return absl::InternalError(absl::StrCat("the next stage returned ",
                                          output_gradients, " gradients for ",
                                          outputs, " outputs"));
}

Tensors TorchStage::OfOutputs(const Kept& kept,
                              Activations output_gradients) const {
  if (loss_ != nullptr) {
    if (!kept.loss.defined()) return Tensors(kept.outputs.size());
    return Gradients({kept.loss}, {::torch::ones_like(kept.loss)}, kept.outputs,
                     /*keep_graph=*/false);
  }
  Tensors gradients;
  for (Activation& one : output_gradients) {
    gradients.push_back(ToTensor(std::move(one)));
  }
  return gradients;
}

absl::StatusOr<Activations> TorchStage::OfInputs(
    const Tensors& gradients) const {
  return is_first_ ? Activations() : ToActivations(gradients);
}

absl::Status TorchStage::Backward(int micro_batch, Activations output_gradients,
                                  Activations* input_gradients) {
  const auto found = kept_.find(micro_batch);
  if (found != kept_.end() && found->second.halves) {
    COXSWAIN_RETURN_IF_ERROR(BackwardInput(
        micro_batch, std::move(output_gradients), input_gradients));
    return BackwardWeight(micro_batch);
  }
  COXSWAIN_ASSIGN_OR_RETURN(const Kept kept,
                            TakeKept(micro_batch, output_gradients.size()));
  absl::StatusOr<Activations> passed = Activations();
  COXSWAIN_RETURN_IF_ERROR(Guarded("the backward pass", [&] {
    if (forward_only_) {
      passed = OfInputs({});
      return;
    }
    const Part& part = kept.parts.back();
    if (loss_ != nullptr) {
      if (kept.loss.defined()) kept.loss.backward();
    } else {
      Tensors roots;
      Tensors gradients;
      for (size_t i = 0; i < part.outputs.size(); ++i) {
        // Of what the next stage has no use for, nothing comes back.
        if (output_gradients[i].absent || !part.outputs[i].requires_grad()) {
          continue;
        }
        roots.push_back(part.outputs[i]);
        gradients.push_back(ToTensor(std::move(output_gradients[i])));
      }
      if (!roots.empty()) ::torch::autograd::backward(roots, gradients);
    }
    Tensors of_inputs;
    for (const ::torch::Tensor& input : part.inputs) {
      of_inputs.push_back(input.defined() ? input.grad() : input);
    }
    passed = OfInputs(of_inputs);
  }));
  COXSWAIN_ASSIGN_OR_RETURN(*input_gradients, std::move(passed));
  return absl::OkStatus();
}

absl::Status TorchStage::BackwardInput(int micro_batch,
                                       Activations output_gradients,
                                       Activations* input_gradients) {
  COXSWAIN_ASSIGN_OR_RETURN(Kept kept,
                            TakeKept(micro_batch, output_gradients.size()));
  if (!kept.halves && !forward_only_) {
    return absl::FailedPreconditionError(
        "half of a backward pass, and the step has only whole ones; begin it "
        "with those of its schedule: Begin(micro_batches, /*halves=*/true)");
  }
  absl::StatusOr<Activations> passed = Activations();
  COXSWAIN_RETURN_IF_ERROR(Guarded("the backward pass of the inputs", [&] {
    Tensors gradients;
    if (!forward_only_) {
      gradients = OfOutputs(kept, std::move(output_gradients));
      for (size_t i = kept.parts.size(); i-- > 0;) {
        Part& part = kept.parts[i];
        part.output_gradients = std::move(gradients);
        gradients = Gradients(part.outputs, part.output_gradients, part.inputs,
                              /*keep_graph=*/!layers_[i].parameters.empty());
      }
    }
    passed = OfInputs(gradients);
  }));
  COXSWAIN_ASSIGN_OR_RETURN(*input_gradients, std::move(passed));
  half_done_[micro_batch] = std::move(kept.parts);
  return absl::OkStatus();
}

absl::Status TorchStage::BackwardWeight(int micro_batch) {
  auto node = half_done_.extract(micro_batch);
  if (node.empty()) {
    return absl::FailedPreconditionError(
        "the backward pass of its inputs has not run");
  }
  if (forward_only_) return absl::OkStatus();
  std::vector<Part>& parts = node.mapped();
  return Guarded("the backward pass of the parameters", [&] {
    for (size_t i = parts.size(); i-- > 0;) {
      Tensors used;
      for (const StageParameter& parameter : layers_[i].parameters) {
        used.push_back(parameter.used);
      }
      const Tensors gradients =
          Gradients(parts[i].outputs, parts[i].output_gradients, used,
                    /*keep_graph=*/false);
      for (size_t k = 0; k < used.size(); ++k) {
        AddTo(layers_[i].parameters[k].trained, gradients[k]);
      }
      parts[i] = Part();
    }
  });
}

void TorchStage::Reset() {
  kept_.clear();
  half_done_.clear();
  losses_.clear();
}

}  // namespace coxswain::torch
