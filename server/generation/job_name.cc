#include "server/generation/job_name.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace coxswain::server {
namespace {

constexpr size_t kMaxJobNameBytes = 128;

}  // namespace

absl::Status ValidateJobName(absl::string_view job) {
  const auto allowed = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  };
  if (!job.empty() && job.size() <= kMaxJobNameBytes && job != "." &&
      job != ".." && std::all_of(job.begin(), job.end(), allowed)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a job name has 1 to ", kMaxJobNameBytes,
      " characters of [A-Za-z0-9._-] and is not \".\" or \"..\", unlike '",
      absl::CHexEscape(job.substr(0, kMaxJobNameBytes)), "'"));
}

}  // namespace coxswain::server
