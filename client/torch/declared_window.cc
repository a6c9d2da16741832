#include "client/torch/declared_window.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::torch {

void DeclaredWindow::Begin(bool exchanges, size_t parameters) {
  open_ = true;
  exchanges_ = exchanges;
  failed_ = false;
  in_last_pass_ = false;
  last_.clear();
  gradients_.assign(parameters, Gradient::kSummedUp);
}

absl::Status DeclaredWindow::BeginLastPass(
    const std::vector<int>& parameters,
    const std::vector<ParameterSpec>& described) {
  if (!open_) {
    return absl::FailedPreconditionError(
        "BeginLastPass outside a declared window: call DeclareWindow first");
  }
  COXSWAIN_RETURN_IF_ERROR(CheckNoLastPass());
  for (const int parameter : parameters) {
    const auto index = static_cast<size_t>(parameter);
    if (parameter < 0 || index >= gradients_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "BeginLastPass of parameter ", parameter, " of ", gradients_.size(),
          ": they are numbered as parameters() has them"));
    }
    if (gradients_[index] != Gradient::kSummedUp) {
      return absl::InvalidArgumentError(absl::StrCat(
          "BeginLastPass names \"", described[index].name,
          "\" twice in one window: each parameter has one last pass, that of "
          "its stage's last micro-batch"));
    }
    gradients_[index] = Gradient::kLast;
  }
  last_ = parameters;
  in_last_pass_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> DeclaredWindow::EndLastPass() {
  if (!open_ || !in_last_pass_) {
    return absl::FailedPreconditionError(
        "EndLastPass without a last pass: call BeginLastPass before the pass");
  }
  in_last_pass_ = false;
  for (const int parameter : last_) {
    gradients_[static_cast<size_t>(parameter)] = Gradient::kComplete;
  }
  return last_;
}

absl::Status DeclaredWindow::CheckNoLastPass() const {
  if (!in_last_pass_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a last pass of the declared window has begun and not ended: call "
      "EndLastPass after its backward, or FailMicroBatch if that failed");
}

DeclaredWindow::Gradient DeclaredWindow::Arrived(int parameter) const {
  return gradients_[static_cast<size_t>(parameter)];
}

void DeclaredWindow::Fail() {
  failed_ = true;
  in_last_pass_ = false;
}

}  // namespace coxswain::torch
