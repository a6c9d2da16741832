#include "capi/parts.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/errors.h"
#include "client/elastic/catch_up/elements.h"

namespace coxswain::capi {
namespace {

// More would be a number that is none.
constexpr size_t kMostParts = size_t{1} << 24;

}  // namespace

absl::StatusOr<std::vector<CatchUpTarget::Part>> PartsOf(
    const cx_part* parts, size_t count, absl::string_view argument) {
  if (count > kMostParts) {
    return InvalidArgument(argument, absl::StrCat("has ", count, " parts"));
  }
  if (count > 0) COXSWAIN_RETURN_IF_ERROR(CheckPresent(parts, argument));
  std::vector<CatchUpTarget::Part> found;
  found.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const cx_part& part = parts[i];
    if (part.size > static_cast<size_t>(INT64_MAX) ||
        (part.size > 0 && part.data == nullptr)) {
      return InvalidArgument(absl::StrCat(argument, "[", i, "]"),
                             "is no memory");
    }
    const Span span = {part.data, static_cast<int64_t>(part.size),
                       DType::kUInt8, Device()};
    found.push_back({span, part.parameter});
  }
  return found;
}

absl::StatusOr<std::vector<Span>> SpansOf(const cx_part* parts, size_t count,
                                          absl::string_view argument) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto found, PartsOf(parts, count, argument));
  return catch_up::SpansOf(found);
}

}  // namespace coxswain::capi
