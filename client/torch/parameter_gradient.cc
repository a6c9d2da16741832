#include "client/torch/parameter_gradient.h"

#include <torch/utils.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {

using ::torch::Tensor;

void ParameterGradient::Point(const GradientPlace& place) {
  const Tensor before = view_;
  // Whoever keeps a view, keeps its memory.
  view_ = ::torch::from_blob(
      place.view.data, parameter_.sizes(), [memory = place.memory](void*) {},
      ::torch::TensorOptions()
          .dtype(FromDType(place.view.dtype))
          .device(parameter_.device()));
  Tensor& gradient = parameter_.mutable_grad();
  if (before.defined() && gradient.defined() && gradient.is_alias_of(before)) {
    gradient = view_;
  }
}

bool ParameterGradient::InPlace(const Tensor& gradient) const {
  return gradient.is_alias_of(view_) && gradient.is_contiguous();
}

void ParameterGradient::Separate() {
  // While its hook runs, libtorch holds what .grad was made of, beside .grad.
  constexpr size_t kOwners = 2;
  const Tensor& gradient = parameter_.grad();
  if (as_view_ || !gradient.defined() || gradient.requires_grad() ||
      gradient.layout() != ::torch::kStrided ||
      gradient.storage().use_count() <= kOwners) {
    return;
  }
  const ::torch::NoGradGuard no_grad;
  parameter_.mutable_grad() = gradient.clone();
}

void ParameterGradient::Adopt() {
  const Tensor& gradient = parameter_.grad();
  if (!as_view_ || !gradient.defined() || InPlace(gradient)) return;
  // A pass that builds a graph of the gradients (second derivatives) needs the
  // tensor that is part of it; and what cannot be averaged is refused later.
  if (gradient.requires_grad() || gradient.layout() != ::torch::kStrided) {
    return;
  }
  CopyToPlace();
}

void ParameterGradient::CopyToPlace() {
  const ::torch::NoGradGuard no_grad;
  Tensor& gradient = parameter_.mutable_grad();
  if (!InPlace(gradient)) view_.copy_(gradient);
  if (as_view_) gradient = view_;
}

absl::Status ParameterGradient::Mark(Reducer& reducer, int index, bool used) {
  Reducer::MarkOptions mark;
  mark.used = used;
  const Tensor& gradient = parameter_.grad();
  if (gradient.layout() != ::torch::kStrided) {
    return absl::UnimplementedError(
        absl::StrCat("the gradient of \"",
                     reducer.parameters()[static_cast<size_t>(index)].name,
                     "\" is sparse; only dense ones can be averaged"));
  }
  if (!as_view_ && gradient.is_contiguous() &&
      gradient.scalar_type() == view_.scalar_type()) {
    outside_ = gradient;
    mark.copy_back = true;
    return reducer.MarkReady(index, ElementsOf(outside_), mark);
  }
  // From the mark on, .grad may belong to the exchange thread.
  COXSWAIN_RETURN_IF_ERROR(Guarded("reading a gradient", [&] {
    if (!used) SetAside();
    CopyToPlace();
  }));
  return reducer.MarkReady(index, mark);
}

absl::Status ParameterGradient::MarkZeros(Reducer& reducer, int index) {
  return reducer.MarkZeros(index);
}

void ParameterGradient::SetAside() {
  if (as_view_ && defined()) aside_ = parameter_.grad().detach().clone();
}

void ParameterGradient::TakeAverage() {
  const ::torch::NoGradGuard no_grad;
  Tensor& gradient = parameter_.mutable_grad();
  const Tensor outside = std::exchange(outside_, Tensor());
  aside_ = Tensor();
  if (as_view_) {
    gradient = view_;
  } else if (outside.defined()) {
    gradient = outside;
  } else {
    // With the parameter's strides, as libtorch itself makes gradients.
    if (!gradient.defined()) gradient = ::torch::empty_like(parameter_);
    gradient.copy_(view_);
  }
}

void ParameterGradient::LeaveAsItWas() {
  const ::torch::NoGradGuard no_grad;
  outside_ = Tensor();
  if (!aside_.defined()) return;
  view_.copy_(std::exchange(aside_, Tensor()));
  parameter_.mutable_grad() = view_;
}

void ParameterGradient::Release() {
  Tensor& gradient = parameter_.mutable_grad();
  if (gradient.defined() && view_.defined() && gradient.is_alias_of(view_)) {
    gradient = gradient.detach().clone();
  }
}

}  // namespace coxswain::torch
