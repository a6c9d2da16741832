#include "hooks/non_finite.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/logging.h"
#include "hooks/kernels/elementwise.h"

namespace coxswain {
namespace {

// Returns whether a 16-bit float has all bits of its exponent set.
bool AnyNonFinite(const uint16_t* values, int64_t count, uint16_t exponent) {
  return std::any_of(values, values + count, [exponent](uint16_t value) {
    return (value & exponent) == exponent;
  });
}

}  // namespace

bool AnyNonFinite(const Span& span) {
  if (span.device.kind != Device::Kind::kCpu) return false;
  switch (span.dtype) {
    case DType::kFloat32:
      return CountNonFinite(static_cast<const float*>(span.data), span.count);
    case DType::kFloat64:
      return CountNonFinite(static_cast<const double*>(span.data), span.count);
    case DType::kFloat16:
      return AnyNonFinite(static_cast<const uint16_t*>(span.data), span.count,
                          0x7c00);
    case DType::kBFloat16:
      return AnyNonFinite(static_cast<const uint16_t*>(span.data), span.count,
                          0x7f80);
    default:
      return false;
  }
}

NonFiniteSearch::NonFiniteSearch(const Bucket& bucket,
                                 const std::vector<ParameterSpec>& parameters) {
  const DType dtype = bucket.data.dtype;
  COXSWAIN_CHECK(dtype == DType::kFloat32 || dtype == DType::kFloat64 ||
                 dtype == DType::kFloat16 || dtype == DType::kBFloat16);
  for (const GradientSlot& slot : bucket.gradients) {
    names_.push_back(parameters[static_cast<size_t>(slot.parameter)].name);
    if (own_ == 0 && AnyNonFinite(bucket.Gradient(slot))) {
      own_ = static_cast<int32_t>(names_.size());
    }
  }
}

WorkPtr NonFiniteSearch::Start(Communicator& communicator) {
  by_rank_ = std::make_shared<std::vector<int32_t>>(
      static_cast<size_t>(communicator.size()), 0);
  (*by_rank_)[static_cast<size_t>(communicator.rank())] = own_;
  WorkPtr work = communicator.AllReduce(
      Span{by_rank_->data(), communicator.size(), DType::kInt32, Device()});
  // The memory is kept until the back end is done with it.
  work->OnDone([keep = by_rank_](const absl::Status&) {});
  return work;
}

std::vector<NonFiniteGradient> NonFiniteSearch::Found() const {
  std::vector<NonFiniteGradient> found;
  for (size_t rank = 0; rank < by_rank_->size(); ++rank) {
    const int32_t number = (*by_rank_)[rank];
    // Numbers come from peers.
    if (number < 1 || static_cast<size_t>(number) > names_.size()) continue;
    found.push_back(
        {static_cast<int>(rank), names_[static_cast<size_t>(number - 1)]});
  }
  return found;
}

void WarnNonFinite(absl::string_view spec, int64_t step, const Bucket& bucket,
                   const std::vector<NonFiniteGradient>& found) {
  const std::string whose = absl::StrJoin(
      found, ", ", [](std::string* out, const NonFiniteGradient& gradient) {
        absl::StrAppend(out, gradient.parameter, " on rank ", gradient.rank);
      });
  LogWarning("gradient_not_finite",
             {{"hook", spec},
              {"step", step},
              {"bucket", bucket.index},
              {"first", found.empty() ? "none, a sum overflowed" : whose},
              {"effect", "the averages are NaN, the hook's state is kept"}});
}

void FillWithNan(const Span& span) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  if (span.dtype == DType::kFloat64) {
    std::fill_n(static_cast<double*>(span.data), span.count, double{nan});
  } else if (span.dtype == DType::kFloat32) {
    std::fill_n(static_cast<float*>(span.data), span.count, nan);
  } else {
    // All exponent bits and the highest mantissa bit of either 16-bit type.
    std::fill_n(static_cast<uint16_t*>(span.data), span.count,
                uint16_t{0x7fc0});
  }
}

}  // namespace coxswain
