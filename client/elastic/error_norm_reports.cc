#include "client/elastic/error_norm_reports.h"

#include <algorithm>

namespace coxswain {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);
constexpr int kShare = 100;

}  // namespace

void ErrorNormReports::AfterStep(Session& session, const Hook& hook,
                                 int64_t step) {
  const absl::Time begun = clock_.Now();
  if (begun < next_) return;
  session.ReportErrorNorm(hook.ErrorNorm(), step);
  const absl::Time ended = clock_.Now();
  next_ = ended + std::max(kInterval, kShare * (ended - begun));
}

}  // namespace coxswain
