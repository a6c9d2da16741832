#include "cli/commands.h"

#include "absl/strings/str_cat.h"
#include "base/version.h"
#include "client/comm/nccl/nccl_library.h"
#include "client/comm/nccl/nccl_status.h"
#include "google/protobuf/stubs/common.h"
#include "grpcpp/grpcpp.h"

namespace coxswain {
namespace {

#ifdef COXSWAIN_CUDA
constexpr int kCuda = COXSWAIN_CUDA;
#else
constexpr int kCuda = 0;
#endif
#ifdef COXSWAIN_NCCL
constexpr int kNcclHeader = COXSWAIN_NCCL;
#else
constexpr int kNcclHeader = 0;
#endif

absl::StatusOr<int> NcclLibrary() {
  const auto nccl = LoadNccl();
  if (!nccl.ok()) return nccl.status();
  return (*nccl)->version();
}

}  // namespace

std::string GpuVersionText(int cuda, int nccl_header,
                           const absl::StatusOr<int>& nccl_library) {
  if (cuda == 0) {
    return "CUDA: built without, so gradients stay on the CPU\n";
  }
  // CUDART_VERSION is 13000 for 13.0, 12060 for 12.6.
  const std::string text =
      absl::StrCat("CUDA ", cuda / 1000, ".", cuda % 1000 / 10, "\n");
  if (nccl_header == 0) return absl::StrCat(text, "NCCL: built without\n");
  return absl::StrCat(
      text, "NCCL ", NcclVersionText(nccl_header), " (header); library ",
      nccl_library.ok()
          ? NcclVersionText(*nccl_library)
          : absl::StrCat("not usable: ", nccl_library.status().message()),
      "\n");
}

std::string VersionText() {
  return absl::StrCat(
      "coxswain ", kVersion, "\n", "gRPC ", grpc::Version(), "\n", "protobuf ",
      google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION), "\n",
      GpuVersionText(kCuda, kNcclHeader, NcclLibrary()));
}

}  // namespace coxswain
