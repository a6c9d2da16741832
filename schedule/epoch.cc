#include "schedule/epoch.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace coxswain::schedule {

std::string Epoch::ToString() const {
  return absl::StrCat("fallback epoch ", fallback, ", term ", term);
}

absl::StatusOr<Epoch> EpochFromWire(int64_t fallback, int64_t term,
                                    int64_t lowest) {
  if (fallback < lowest || fallback > Epoch::kMaxFallback) {
    return absl::InvalidArgumentError(
        absl::StrCat("a fallback epoch must be ", lowest, " to ",
                     Epoch::kMaxFallback, ", not ", fallback));
  }
  if (term < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a term must not be negative, as ", term, " is"));
  }
  return Epoch{fallback, term};
}

}  // namespace coxswain::schedule
