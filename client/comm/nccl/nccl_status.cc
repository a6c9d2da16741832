#include "client/comm/nccl/nccl_status.h"

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

struct Meaning {
  absl::StatusCode code;
  const char* text;
};

Meaning MeaningOf(NcclResult result) {
  switch (result) {
    case NcclResult::kSuccess:
    case NcclResult::kInProgress:
      return {absl::StatusCode::kOk, ""};
    case NcclResult::kUnhandledCudaError:
      return {absl::StatusCode::kInternal, "a call to CUDA failed"};
    case NcclResult::kSystemError:
      return {absl::StatusCode::kUnavailable, "a call to the system failed"};
    case NcclResult::kInternalError:
      return {absl::StatusCode::kInternal, "NCCL failed inside"};
    case NcclResult::kInvalidArgument:
      return {absl::StatusCode::kInvalidArgument,
              "NCCL refused the arguments of the call"};
    case NcclResult::kInvalidUsage:
      return {absl::StatusCode::kFailedPrecondition,
              "NCCL refused the call at this point"};
    case NcclResult::kRemoteError:
      return {absl::StatusCode::kUnavailable,
              "a peer has ended or the network failed"};
  }
  return {absl::StatusCode::kUnknown, "NCCL returned an unknown result"};
}

}  // namespace

absl::Status NcclStatus(absl::string_view where, NcclResult result,
                        NcclApi* api, NcclComm comm) {
  const Meaning meaning = MeaningOf(result);
  if (meaning.code == absl::StatusCode::kOk) return absl::OkStatus();
  std::string text = absl::StrCat(where, ": ", meaning.text, " (result ",
                                  static_cast<int>(result), ")");
  const std::string last = api->LastError(comm);
  if (!last.empty()) absl::StrAppend(&text, ": ", last);
  if (result != NcclResult::kRemoteError) {
    absl::StrAppend(&text, "; set NCCL_DEBUG=INFO for NCCL's log");
  }
  return absl::Status(meaning.code, text);
}

std::string NcclVersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".",
                      version % 100);
}

}  // namespace coxswain
