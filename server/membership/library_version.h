#ifndef COXSWAIN_SERVER_MEMBERSHIP_LIBRARY_VERSION_H_
#define COXSWAIN_SERVER_MEMBERSHIP_LIBRARY_VERSION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace coxswain::server {

// The setting of a manifest with the version that a worker was built with, as
// MAJOR.MINOR.PATCH.
inline constexpr char kLibraryVersionSetting[] = "library_version";

// "MAJOR.MINOR" of a version: what the workers of one generation must have in
// common. A text that is no version is its own series.
std::string LibrarySeries(absl::string_view version);

// Whether a coordinator of one version serves workers of another: those of its
// own series, and of the minor version before it, so that the coordinator can
// be upgraded first.
//   INVALID_ARGUMENT     the worker's is no version
//   FAILED_PRECONDITION  it does not; the message names the one to upgrade
absl::Status CheckLibraryVersion(absl::string_view worker,
                                 absl::string_view coordinator);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_LIBRARY_VERSION_H_
