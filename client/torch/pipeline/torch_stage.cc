#include "client/torch/pipeline/torch_stage.h"

#include <torch/csrc/autograd/autograd.h>

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

}  // namespace

absl::Status TorchStage::Begin(int micro_batches) {
  losses_.clear();
  if (!is_first_ || inputs_.size() == static_cast<size_t>(micro_batches)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the first stage has inputs for ", inputs_.size(),
                   " micro-batches, and a step has ", micro_batches,
                   "; call SetInputs before each step"));
}

absl::Status TorchStage::Forward(int micro_batch, Activations inputs,
                                 Activations* outputs) {
  Kept kept;
  if (is_first_) {
    kept.inputs = inputs_[static_cast<size_t>(micro_batch)];
  } else if (inputs.empty()) {
    return absl::FailedPreconditionError(
        "no tensors come in: of the first stage call SetInputs before each "
        "step; another one's predecessor returns none");
  }
  Tensors results;
  COXSWAIN_RETURN_IF_ERROR(Guarded("the forward pass", [&] {
    for (Activation& input : inputs) {
      kept.inputs.push_back(ToTensor(std::move(input)));
      if (HasGradient(kept.inputs.back())) {
        kept.inputs.back().requires_grad_();
      }
    }
    results = compute_(kept.inputs);
    if (loss_ != nullptr) {
      kept.loss = loss_(micro_batch, results);
      losses_[micro_batch] = kept.loss.detach();
    }
  }));
  if (loss_ == nullptr) {
    absl::StatusOr<Activations> passed;
    COXSWAIN_RETURN_IF_ERROR(
        Guarded("the forward pass", [&] { passed = ToActivations(results); }));
    COXSWAIN_ASSIGN_OR_RETURN(*outputs, std::move(passed));
    kept.outputs = std::move(results);
  }
  kept_[micro_batch] = std::move(kept);
  return absl::OkStatus();
}

absl::Status TorchStage::Backward(int micro_batch, Activations output_gradients,
                                  Activations* input_gradients) {
  auto node = kept_.extract(micro_batch);
  if (node.empty()) {
    return absl::FailedPreconditionError("its forward pass has not run");
  }
  Kept kept = std::move(node.mapped());
  if (loss_ == nullptr && output_gradients.size() != kept.outputs.size()) {
    return absl::InternalError(
        absl::StrCat("the next stage returned ", output_gradients.size(),
                     " gradients for ", kept.outputs.size(), " outputs"));
  }
  absl::StatusOr<Activations> passed = Activations();
  COXSWAIN_RETURN_IF_ERROR(Guarded("the backward pass", [&] {
    if (kept.loss.defined()) {
      kept.loss.backward();
    } else {
      Tensors roots;
      Tensors gradients;
      for (size_t i = 0; i < kept.outputs.size(); ++i) {
        // Of what the next stage has no use for, nothing comes back.
        if (output_gradients[i].absent || !kept.outputs[i].requires_grad()) {
          continue;
        }
        roots.push_back(kept.outputs[i]);
        gradients.push_back(ToTensor(std::move(output_gradients[i])));
      }
      if (!roots.empty()) ::torch::autograd::backward(roots, gradients);
    }
    Tensors of_inputs;
    if (is_first_) return;
    for (const ::torch::Tensor& input : kept.inputs) {
      of_inputs.push_back(input.defined() ? input.grad() : input);
    }
    passed = ToActivations(of_inputs);
  }));
  COXSWAIN_ASSIGN_OR_RETURN(*input_gradients, std::move(passed));
  return absl::OkStatus();
}

void TorchStage::Reset() {
  kept_.clear();
  losses_.clear();
}

}  // namespace coxswain::torch
