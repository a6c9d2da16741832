#include "transport/error_detail.h"

#include <string>

#include "absl/strings/cord.h"
#include "base/error_detail.h"

namespace coxswain {

v1::ErrorDetail DetailOf(const absl::Status& error) {
  v1::ErrorDetail detail;
  const auto payload = error.GetPayload(kErrorDetailUrl);
  // A parse that fails leaves what it has read so far.
  if (payload.has_value() && !detail.ParseFromString(std::string(*payload))) {
    detail.Clear();
  }
  return detail;
}

absl::Status WithDetail(absl::Status error, const v1::ErrorDetail& detail) {
  error.SetPayload(kErrorDetailUrl, absl::Cord(detail.SerializeAsString()));
  return error;
}

absl::Status WithDetailOf(const absl::Status& source, absl::Status error) {
  const auto payload = source.GetPayload(kErrorDetailUrl);
  if (payload.has_value()) error.SetPayload(kErrorDetailUrl, *payload);
  return error;
}

}  // namespace coxswain
