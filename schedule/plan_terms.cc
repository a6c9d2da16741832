#include "schedule/plan_terms.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::schedule {
namespace {

// Longer than any name or value.
constexpr size_t kMaxTermBytes = 64;

}  // namespace

absl::StatusOr<ScheduleTerms> ReadTerms(
    const std::map<std::string, std::string>& values) {
  for (const auto& [name, value] : values) {
    const size_t bytes = std::max(name.size(), value.size());
    if (bytes <= kMaxTermBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "a term of the schedule has a name and a value of at most ",
        kMaxTermBytes, " bytes; one has ", bytes));
  }
  COXSWAIN_ASSIGN_OR_RETURN(ScheduleTerms terms,
                            ScheduleTerms::FromMap(values));
  COXSWAIN_RETURN_IF_ERROR(terms.Validate());
  return terms;
}

}  // namespace coxswain::schedule
