#include "capi/errors.h"

#include <vector>

#include "base/peer_text.h"
#include "proto/types.pb.h"
#include "transport/error_detail.h"

namespace coxswain::capi {
namespace {

// No version's struct is larger, and each has a field besides its size.
constexpr size_t kMaxStructBytes = 4096;
constexpr size_t kMinStructBytes = sizeof(size_t) + 1;

// An error as the C interface returns it.
struct LastError {
  cx_code code = CX_OK;
  std::string message;
  cx_error_kind kind = CX_ERROR_OTHER;
  std::vector<int32_t> ranks;
};
thread_local LastError last_error;

void AddDetail(const v1::ErrorDetail& detail, LastError* error) {
  switch (detail.kind_case()) {
    case v1::ErrorDetail::kScheduleMismatch: {
      error->kind = CX_ERROR_RANKS_DIFFER;
      const auto& ranks = detail.schedule_mismatch().odd_ranks();
      error->ranks.assign(ranks.begin(), ranks.end());
      break;
    }
    case v1::ErrorDetail::kMemberLost:
      error->kind = CX_ERROR_MEMBER_LOST;
      error->ranks = {detail.member_lost().member().rank()};
      break;
    case v1::ErrorDetail::kMissingMembers: {
      error->kind = CX_ERROR_MEMBERS_MISSING;
      const auto& ranks = detail.missing_members().missing_ranks();
      error->ranks.assign(ranks.begin(), ranks.end());
      break;
    }
    case v1::ErrorDetail::kManifestMismatch:
      error->kind = CX_ERROR_MANIFESTS_DIFFER;
      break;
    case v1::ErrorDetail::kJobFinished:
      error->kind = CX_ERROR_JOB_FINISHED;
      break;
    case v1::ErrorDetail::kStaleFence:
      error->kind = CX_ERROR_STALE;
      break;
    case v1::ErrorDetail::KIND_NOT_SET:
      break;
  }
}

LastError ErrorOf(const absl::Status& status) {
  LastError error;
  error.code = static_cast<cx_code>(status.code());
  error.message = std::string(status.message());
  AddDetail(DetailOf(status), &error);
  return error;
}

}  // namespace

cx_code Report(const Answer& answer) noexcept {
  if (answer.again) return CX_AGAIN;
  if (answer.status.ok()) return CX_OK;
  const auto code = static_cast<cx_code>(answer.status.code());
  try {
    last_error = ErrorOf(answer.status);
  } catch (...) {
    // There is no memory for more.
    last_error.code = code;
    last_error.message.clear();
    last_error.kind = CX_ERROR_OTHER;
    last_error.ranks.clear();
  }
  return code;
}

absl::Status InvalidArgument(absl::string_view argument,
                             absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(argument, " ", problem));
}

absl::Status CheckTimeout(int64_t timeout_ms) {
  if (timeout_ms >= 0) return absl::OkStatus();
  return InvalidArgument("timeout_ms",
                         absl::StrCat("is ", timeout_ms, ", below 0"));
}

absl::StatusOr<std::string> TextOf(const char* text,
                                   absl::string_view argument) {
  if (text == nullptr) return std::string();
  std::string known = text;
  if (ValidUtf8(known) == known) return known;
  return InvalidArgument(argument, "is not UTF-8");
}

absl::Status CheckSize(size_t size, absl::string_view argument) {
  if (size >= kMinStructBytes && size <= kMaxStructBytes) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      argument, absl::StrCat("has the size ", size,
                             ": set its field `size` to sizeof the struct"));
}

absl::Status CheckUnknown(const void* given, size_t given_size,
                          size_t known_size, absl::string_view argument) {
  const char* const bytes = static_cast<const char*>(given);
  for (size_t i = known_size; i < given_size; ++i) {
    if (bytes[i] == 0) continue;
    return InvalidArgument(
        argument,
        absl::StrCat("sets a field that this library does not know: its "
                     "struct has ",
                     given_size, " bytes, the library's ", known_size,
                     ". The program needs a newer library"));
  }
  return absl::OkStatus();
}

}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_last_error_code(void) { return capi::last_error.code; }

const char* cx_last_error_message(void) {
  return capi::last_error.message.c_str();
}

cx_error_kind cx_last_error_kind(void) { return capi::last_error.kind; }

size_t cx_last_error_ranks(int32_t* ranks, size_t capacity) {
  const auto& known = capi::last_error.ranks;
  if (ranks != nullptr) {
    std::copy_n(known.begin(), std::min(capacity, known.size()), ranks);
  }
  return known.size();
}
