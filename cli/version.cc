#include "cli/version.h"

#include "absl/strings/str_cat.h"
#include "base/version.h"
#include "google/protobuf/stubs/common.h"
#include "grpcpp/grpcpp.h"

namespace coxswain {

std::string VersionText() {
  return absl::StrCat(
      "coxswain ", kVersion, "\n", "gRPC ", grpc::Version(), "\n", "protobuf ",
      google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION), "\n");
}

}  // namespace coxswain
