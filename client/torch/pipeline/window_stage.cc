#include "client/torch/pipeline/window_stage.h"

#include "base/status_macros.h"

namespace coxswain::torch {

absl::Status WindowStage::Begin(int micro_batches, bool halves) {
  left_ = micro_batches;
  return stage_.Begin(micro_batches, halves);
}

absl::Status WindowStage::Run(const std::function<absl::Status()>& pass) {
  const bool last = --left_ == 0 && in_window_;
  if (last) COXSWAIN_RETURN_IF_ERROR(ddp_.BeginLastPass(parameters_));
  COXSWAIN_RETURN_IF_ERROR(pass());
  return last ? ddp_.EndLastPass() : absl::OkStatus();
}

absl::Status WindowStage::Forward(int micro_batch, Activations inputs,
                                  Activations* outputs) {
  return stage_.Forward(micro_batch, std::move(inputs), outputs);
}

absl::Status WindowStage::Backward(int micro_batch,
                                   Activations output_gradients,
                                   Activations* input_gradients) {
  return Run([&] {
    return stage_.Backward(micro_batch, std::move(output_gradients),
                           input_gradients);
  });
}

absl::Status WindowStage::BackwardInput(int micro_batch,
                                        Activations output_gradients,
                                        Activations* input_gradients) {
  return stage_.BackwardInput(micro_batch, std::move(output_gradients),
                              input_gradients);
}

absl::Status WindowStage::BackwardWeight(int micro_batch) {
  return Run([&] { return stage_.BackwardWeight(micro_batch); });
}

}  // namespace coxswain::torch
