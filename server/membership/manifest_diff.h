#ifndef COXSWAIN_SERVER_MEMBERSHIP_MANIFEST_DIFF_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MANIFEST_DIFF_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/membership/member.h"

namespace coxswain::server {

// At most this many lines are given; the last then counts those that are left
// out.
inline constexpr size_t kMaxDifferences = 20;
// The lines travel in the trailing metadata of an error as typed detail, and
// the first ones again as text; receivers refuse more than 8 KiB of it.
inline constexpr size_t kMaxDifferenceBytes = 3000;

// One readable line for each difference between the manifest that `other`
// brought and the one at hand, both normalised; empty if there is none.
// Parameters are compared by position, because the order decides what is
// summed with what:
//   parameter 3: conv1.bias float32[16] on host-a/0, fc.bias float32[10] here
std::vector<std::string> DiffManifests(const Manifest& theirs,
                                       absl::string_view other,
                                       const Manifest& ours);

// A normalised manifest and the workers that have it, by their places in a list
// of names.
struct HeldManifest {
  const Manifest* manifest = nullptr;
  std::vector<size_t> holders;
};

// Returns the same among many: each value with its workers, the most frequent
// first. A line names a few workers and values and counts the others. hook:
// bf16 on rank 0 (bow/0), rank 1 (bow/1); fp16 on rank 2 (stroke/0)
std::vector<std::string> DiffManifests(const std::vector<HeldManifest>& held,
                                       const std::vector<std::string>& names);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MANIFEST_DIFF_H_
