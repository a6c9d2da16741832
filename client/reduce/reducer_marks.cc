// The part of Reducer that takes gradients.

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/reduce/reducer.h"

namespace coxswain {
namespace {

// memcpy wants valid pointers even for nothing.
void CopyBytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void Clear(const Span& span) {
  if (span.count > 0) {
    std::memset(span.data, 0, static_cast<size_t>(span.bytes()));
  }
}

}  // namespace

void Reducer::BeginMarks() {
  const bool complete = weight_ == 0;
  for (const Bucket& bucket : buckets()) {
    if (complete) Clear(bucket.data);
  }
  marks_.Begin(buckets(), parameters_.size(), complete,
               exchange_->report().begun);
}

absl::Status Reducer::MarkReady(int parameter) {
  return MarkReady(parameter, MarkOptions());
}

absl::Status Reducer::MarkReady(int parameter, const MarkOptions& mark) {
  COXSWAIN_RETURN_IF_ERROR(Claim(parameter, {mark.used, nullptr}));
  CountDown(parameter);
  return absl::OkStatus();
}

absl::Status Reducer::MarkReady(int parameter, Span gradient) {
  return MarkReady(parameter, gradient, MarkOptions());
}

absl::Status Reducer::MarkReady(int parameter, Span gradient,
                                const MarkOptions& mark) {
  COXSWAIN_RETURN_IF_ERROR(
      Claim(parameter, {mark.used, mark.copy_back ? gradient.data : nullptr}));
  const Span view = GradientView(parameter);
  if (gradient.count != view.count || gradient.dtype != view.dtype) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "the gradient of \"", parameters_[static_cast<size_t>(parameter)].name,
        "\" has ", gradient.count, " x ", NameOf(gradient.dtype),
        ", its parameter ", view.count, " x ", NameOf(view.dtype))));
  }
  CopyBytes(view.data, gradient.data, view.bytes());
  CountDown(parameter);
  return absl::OkStatus();
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
  if (weight_ == 0) {
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

void Reducer::CountDown(int parameter) {
  marks_.CountDown(parameter, Place(parameter).bucket, options_.clock->Now());
}

std::vector<int> Reducer::Unmarked() const { return marks_.Unclaimed(); }

void Reducer::MarkMissing() {
  for (const int parameter : Unmarked()) {
    // Another thread's error may come first: then nothing counts any more.
    if (!Claim(parameter, {/*used=*/false, nullptr}).ok()) return;
    Clear(GradientView(parameter));
    CountDown(parameter);
  }
}

}  // namespace coxswain
