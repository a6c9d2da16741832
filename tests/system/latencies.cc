#include "tests/system/latencies.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace coxswain {
namespace {

double Millis(absl::Duration duration) {
  return absl::ToDoubleMilliseconds(duration);
}

}  // namespace

absl::Duration Latencies::Quantile(double share) const {
  if (all_.empty()) return absl::ZeroDuration();
  std::vector<absl::Duration> sorted = all_;
  std::sort(sorted.begin(), sorted.end());
  const auto rank = static_cast<size_t>(
      std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::min(sorted.size(), std::max<size_t>(rank, 1)) - 1];
}

std::string Latencies::ToString() const {
  return absl::StrFormat("p50 %.1f ms, p99 %.1f ms, most %.1f ms, of %d",
                         Millis(Quantile(0.5)), Millis(Quantile(0.99)),
                         Millis(Quantile(1)), count());
}

std::string Latencies::ToJson() const {
  return absl::StrFormat(
      R"({"count": %d, "p50_ms": %.3f, "p99_ms": %.3f, "max_ms": %.3f})",
      count(), Millis(Quantile(0.5)), Millis(Quantile(0.99)),
      Millis(Quantile(1)));
}

}  // namespace coxswain
