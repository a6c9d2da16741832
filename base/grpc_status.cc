#include "base/grpc_status.h"

#include <string>

#include "absl/strings/cord.h"

namespace coxswain {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string detail;
  if (const auto payload = status.GetPayload(kErrorDetailUrl)) {
    detail = std::string(*payload);
  }
  // Both sides number the canonical codes alike.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()), detail);
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
  if (!status.error_details().empty()) {
    result.SetPayload(kErrorDetailUrl, absl::Cord(status.error_details()));
  }
  return result;
}

}  // namespace coxswain
