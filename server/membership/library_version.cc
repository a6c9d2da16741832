#include "server/membership/library_version.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"

namespace coxswain::server {
namespace {

struct Version {
  uint32_t major = 0;
  uint32_t minor = 0;
};

bool ParseNumber(absl::string_view text, uint32_t* number) {
  return !text.empty() &&
         text.find_first_not_of("0123456789") == absl::string_view::npos &&
         absl::SimpleAtoi(text, number);
}

// Nothing: it is no version. What follows - or + is not looked at.
std::optional<Version> Parse(absl::string_view text) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(text.substr(0, text.find_first_of("-+")), '.');
  Version version;
  uint32_t patch = 0;
  if (parts.size() != 3 || !ParseNumber(parts[0], &version.major) ||
      !ParseNumber(parts[1], &version.minor) ||
      !ParseNumber(parts[2], &patch)) {
    return std::nullopt;
  }
  return version;
}

}  // namespace

std::string LibrarySeries(absl::string_view version) {
  const std::optional<Version> parsed = Parse(version);
  if (!parsed.has_value()) return std::string(version);
  return absl::StrCat(parsed->major, ".", parsed->minor);
}

absl::Status CheckLibraryVersion(absl::string_view worker,
                                 absl::string_view coordinator) {
  const std::optional<Version> theirs = Parse(worker);
  const std::optional<Version> ours = Parse(coordinator);
  COXSWAIN_CHECK(ours.has_value());
  if (!theirs.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        kLibraryVersionSetting, " is '", absl::CHexEscape(worker.substr(0, 64)),
        "', which is no version MAJOR.MINOR.PATCH"));
  }
  const bool older = theirs->major != ours->major
                         ? theirs->major < ours->major
                         : uint64_t{theirs->minor} + 1 < ours->minor;
  const bool newer = theirs->major != ours->major ? theirs->major > ours->major
                                                  : theirs->minor > ours->minor;
  if (!older && !newer) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "this worker is built with Coxswain ", worker,
      ", and the coordinator is ", coordinator,
      ", which serves workers of its own minor version and of the one before: ",
      newer ? "upgrade the coordinator first" : "build the worker anew"));
}

}  // namespace coxswain::server
