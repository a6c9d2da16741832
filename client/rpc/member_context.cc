#include "client/rpc/member_context.h"

#include <algorithm>
#include <string>
#include "transport/error_detail.h"

namespace coxswain {

absl::Status MemberContext::Outcome(absl::Status status) {
  if (status.ok()) return status;
  absl::Status end = ended_.status();
  if (!end.ok()) return end;
  if (IsStaleFence(status) && !TermOfStaleFence(status).has_value())
    stale_.Raise(status);
  return status;
}

bool IsStaleFence(const absl::Status& status) {
  return DetailOf(status).has_stale_fence();
}

int64_t TimeoutMillis(absl::Duration timeout) {
  const absl::Duration year = absl::Hours(24 * 365);
  return absl::ToInt64Milliseconds(
      std::clamp(timeout, absl::ZeroDuration(), year));
}

}  // namespace coxswain
