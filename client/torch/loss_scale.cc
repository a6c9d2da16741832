#include "client/torch/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace coxswain::torch {
namespace {

absl::Status Refuse(absl::string_view field, double value,
                    absl::string_view bounds) {
  return absl::InvalidArgumentError(absl::StrCat(
      "loss_scaling.", field, " is ", value, ", and has to be ", bounds));
}

}  // namespace

absl::StatusOr<LossScale> LossScale::Create(const LossScaling& scaling) {
  // A NaN is within no bounds.
  if (!(scaling.least > 0)) return Refuse("least", scaling.least, "above 0");
  if (!(scaling.most >= scaling.least) || std::isinf(scaling.most)) {
    return Refuse("most", scaling.most, "finite, and at least `least`");
  }
  if (!(scaling.initial >= scaling.least && scaling.initial <= scaling.most)) {
    return Refuse("initial", scaling.initial,
                  absl::StrCat("from `least`, ", scaling.least, ", to `most`, ",
                               scaling.most));
  }
  if (!(scaling.growth >= 1) || std::isinf(scaling.growth)) {
    return Refuse("growth", scaling.growth, "finite, and at least 1");
  }
  if (!(scaling.backoff > 0 && scaling.backoff <= 1)) {
    return Refuse("backoff", scaling.backoff, "above 0, and at most 1");
  }
  if (scaling.growth_every < 1) {
    return Refuse("growth_every", static_cast<double>(scaling.growth_every),
                  "at least 1");
  }
  return LossScale(scaling);
}

LossScale::LossScale(const LossScaling& scaling)
    : scaling_(scaling), scale_(scaling.initial) {}

void LossScale::OnStep(bool committed) {
  if (!committed) {
    scale_ = std::max(scale_ * scaling_.backoff, scaling_.least);
    committed_ = 0;
  } else if (++committed_ >= scaling_.growth_every) {
    scale_ = std::min(scale_ * scaling_.growth, scaling_.most);
    committed_ = 0;
  }
}

std::string LossScale::Save() const {
  return absl::StrFormat("%.17g %d", scale_, committed_);
}

absl::Status LossScale::Load(absl::string_view saved) {
  const std::pair<absl::string_view, absl::string_view> words =
      absl::StrSplit(saved, absl::MaxSplits(' ', 1));
  double scale = 0;
  int64_t committed = 0;
  if (!absl::SimpleAtod(words.first, &scale) ||
      !absl::SimpleAtoi(words.second, &committed) || !(scale > 0) ||
      std::isinf(scale) || committed < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", saved,
        "\" is no loss scale: Save returns a scale above 0 and a count"));
  }
  scale_ = std::min(std::max(scale, scaling_.least), scaling_.most);
  committed_ = committed;
  return absl::OkStatus();
}

}  // namespace coxswain::torch
