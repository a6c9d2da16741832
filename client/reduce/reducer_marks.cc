// The part of Reducer that takes gradients.

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/reduce/reducer.h"

namespace coxswain {

absl::Status Reducer::BeginMarks() {
  const bool complete = without_data_;
  COXSWAIN_RETURN_IF_ERROR(memory_->Begin(buckets()));
  for (const Bucket& bucket : buckets()) {
    if (!complete) break;
    COXSWAIN_RETURN_IF_ERROR(memory_->ClearGradient(bucket, bucket.data));
    COXSWAIN_RETURN_IF_ERROR(memory_->NoteGradient(bucket));
  }
  marks_.Begin(buckets(), parameters_.size(), complete,
               exchange_->report().begun);
  return absl::OkStatus();
}

absl::Status Reducer::MarkReady(int parameter) {
  return MarkReady(parameter, MarkOptions());
}

absl::Status Reducer::MarkReady(int parameter, const MarkOptions& mark) {
  COXSWAIN_RETURN_IF_ERROR(Claim(parameter, {mark.used, nullptr}));
  return CountDown(parameter);
}

absl::Status Reducer::MarkReady(int parameter, Span gradient) {
  return MarkReady(parameter, gradient, MarkOptions());
}

absl::Status Reducer::MarkReady(int parameter, Span gradient,
                                const MarkOptions& mark) {
  COXSWAIN_RETURN_IF_ERROR(
      Claim(parameter, {mark.used, mark.copy_back ? gradient.data : nullptr}));
  const Span view = GradientView(parameter);
  if (!(gradient.device == view.device)) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "the gradient of \"", parameters_[static_cast<size_t>(parameter)].name,
        "\" is not on the device of its parameter; move it there")));
  }
  if (gradient.count != view.count || gradient.dtype != view.dtype) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "the gradient of \"", parameters_[static_cast<size_t>(parameter)].name,
        "\" has ", gradient.count, " x ", NameOf(gradient.dtype),
        ", its parameter ", view.count, " x ", NameOf(view.dtype))));
  }
  const absl::Status copied =
      memory_->CopyGradient(BucketOf(parameter), view, gradient.data);
  if (!copied.ok()) return Fail(WithPrefix("taking a gradient: ", copied));
  return CountDown(parameter);
}

absl::Status Reducer::MarkZeros(int parameter) {
  COXSWAIN_RETURN_IF_ERROR(Claim(parameter, {/*used=*/false, nullptr}));
  return ClearAndCount(parameter);
}

absl::Status Reducer::Claim(int parameter, const GradientMarks::Mark& mark) {
  COXSWAIN_RETURN_IF_ERROR(status());
  if (parameter < 0 || static_cast<size_t>(parameter) >= parameters_.size()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "there is no parameter ", parameter, " among ", parameters_.size())));
  }
  switch (marks_.Claim(parameter, mark)) {
    case GradientMarks::Claimed::kYes:
      return absl::OkStatus();
    case GradientMarks::Claimed::kTwice:
      return Fail(MarkedTwice(parameter));
    default:
      return absl::FailedPreconditionError(
          "a gradient was marked ready outside a step; call BeginStep first");
  }
}

absl::Status Reducer::MarkedTwice(int parameter) const {
  if (without_data_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter \"", parameters_[static_cast<size_t>(parameter)].name,
        "\" was marked ready in a step of weight 0, whose gradients are zeros; "
        "begin the step with this rank's weight"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "parameter \"", parameters_[static_cast<size_t>(parameter)].name,
      "\" was marked ready twice in one step. Either two backward passes "
      "ran in it (let all but the last one only sum up locally), or the "
      "parameter gets several gradients in one pass (it is used by a "
      "part that is computed again in backward, or by another backward "
      "inside)"));
}

const Bucket& Reducer::BucketOf(int parameter) const {
  return buckets()[static_cast<size_t>(Place(parameter).bucket)];
}

absl::Status Reducer::CountDown(int parameter) {
  const absl::Status noted = memory_->NoteGradient(BucketOf(parameter));
  if (!noted.ok()) return Fail(WithPrefix("taking a gradient: ", noted));
  marks_.CountDown(parameter, Place(parameter).bucket, options_.clock->Now());
  return absl::OkStatus();
}

absl::Status Reducer::ClearAndCount(int parameter) {
  const absl::Status cleared =
      memory_->ClearGradient(BucketOf(parameter), GradientView(parameter));
  if (!cleared.ok()) return Fail(WithPrefix("writing zeros: ", cleared));
  return CountDown(parameter);
}

std::vector<int> Reducer::Unmarked() const { return marks_.Unclaimed(); }

void Reducer::MarkMissing() {
  for (const int parameter : Unmarked()) {
    // Another thread's error may come first: then nothing counts any more.
    if (!Claim(parameter, {/*used=*/false, nullptr}).ok()) return;
    if (!ClearAndCount(parameter).ok()) return;
  }
}

}  // namespace coxswain
