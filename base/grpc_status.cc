#include "base/grpc_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "base/peer_text.h"

namespace coxswain {
namespace {

// A message may repeat what a peer has sent, which may be long; a status beyond
// the receiver's limit of metadata does not arrive at all.
constexpr size_t kMaxMessageBytes = 8 << 10;
constexpr size_t kMaxDetailBytes = 24 << 10;

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string detail;
  if (const auto payload = status.GetPayload(kErrorDetailUrl)) {
    detail = std::string(*payload);
  }
  if (detail.size() > kMaxDetailBytes) detail.clear();
  // Both sides number the canonical codes alike.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      Shorten(status.message(), kMaxMessageBytes), detail);
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
