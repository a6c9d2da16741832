#include "client/torch/pipeline/window_stage.h"

#include "base/status_macros.h"

namespace coxswain::torch {

absl::Status WindowStage::Begin(int micro_batches, bool halves) {
  left_ = micro_batches;
  return stage_.Begin(micro_batches, halves);
}

absl::Status WindowStage::Run(int micro_batch,
                              const std::function<absl::Status()>& pass) {
  if (options_.before_pass) options_.before_pass(micro_batch);
  const absl::Status status = pass();
  if (options_.parallel == nullptr) return status;
  // What libtorch says of zeros, that stand for a result, follows from it.
  COXSWAIN_RETURN_IF_ERROR(options_.parallel->TakeError());
  return status;
}

absl::Status WindowStage::RunToGradients(
    int micro_batch, const std::function<absl::Status()>& pass) {
  const bool last = --left_ == 0 && in_window_;
  if (last) COXSWAIN_RETURN_IF_ERROR(ddp_.BeginLastPass(options_.parameters));
  COXSWAIN_RETURN_IF_ERROR(Run(micro_batch, pass));
  return last ? ddp_.EndLastPass() : absl::OkStatus();
}

absl::Status WindowStage::Forward(int micro_batch, Activations inputs,
                                  Activations* outputs) {
  return Run(micro_batch, [&] {
    return stage_.Forward(micro_batch, std::move(inputs), outputs);
  });
}

absl::Status WindowStage::Backward(int micro_batch,
                                   Activations output_gradients,
                                   Activations* input_gradients) {
  return RunToGradients(micro_batch, [&] {
    return stage_.Backward(micro_batch, std::move(output_gradients),
                           input_gradients);
  });
}

absl::Status WindowStage::BackwardInput(int micro_batch,
                                        Activations output_gradients,
                                        Activations* input_gradients) {
  return Run(micro_batch, [&] {
    return stage_.BackwardInput(micro_batch, std::move(output_gradients),
                                input_gradients);
  });
}

absl::Status WindowStage::BackwardWeight(int micro_batch) {
  return RunToGradients(micro_batch,
                        [&] { return stage_.BackwardWeight(micro_batch); });
}

}  // namespace coxswain::torch
