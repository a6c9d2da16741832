#ifndef COXSWAIN_SERVER_MEMBERSHIP_MANIFEST_CHECK_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MANIFEST_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/membership/member.h"
#include "server/options.h"

namespace coxswain::server {

// INVALID_ARGUMENT or RESOURCE_EXHAUSTED naming what is out of bounds.
absl::Status CheckManifest(const Manifest& manifest,
                           const MembershipOptions& options);

// At most this many lines are given; the last then says how many are left out.
inline constexpr size_t kMaxDifferences = 20;
// The lines travel in the trailing metadata of an error, as text and again as
// typed detail; receivers refuse more than 8 KiB of it.
inline constexpr size_t kMaxDifferenceBytes = 2400;

// One readable line for each difference between the manifest that `other`
// brought and the one at hand; empty if there is none. Parameters are compared
// by position, because the order decides what is summed with what:
//   parameter 3: conv1.bias float32[16] on host-a/0, fc.bias float32[10] here
std::vector<std::string> DiffManifests(const Manifest& theirs,
                                       absl::string_view other,
                                       const Manifest& ours);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MANIFEST_CHECK_H_
