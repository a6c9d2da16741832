#include "server/state/etcd/etcd_status.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace coxswain::server {
namespace {

absl::string_view AdviceFor(absl::string_view message) {
  if (absl::StrContains(message, "space exceeded")) {
    return "; compact and defragment it, disarm its alarm, and have it compact "
           "by itself (--auto-compaction-retention)";
  }
  if (absl::StrContains(message, "too large") ||
      absl::StrContains(message, "larger than max")) {
    return "; its --max-request-bytes must be at least its default of 1.5 MiB";
  }
  return "";
}

absl::StatusCode CodeOf(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::INVALID_ARGUMENT:  // Of ours: only its size.
      return absl::StatusCode::kResourceExhausted;
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::StatusCode::kFailedPrecondition;
    case grpc::StatusCode::OUT_OF_RANGE:
      return absl::StatusCode::kOutOfRange;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

absl::Status FromEtcdStatus(const grpc::Status& status, absl::string_view what,
                            absl::string_view endpoint) {
  if (status.ok()) return absl::OkStatus();
  const std::string& message = status.error_message();
  return absl::Status(CodeOf(status),
                      absl::StrCat("etcd at ", endpoint, ": ", what, ": ",
                                   message, AdviceFor(message)));
}

}  // namespace coxswain::server
