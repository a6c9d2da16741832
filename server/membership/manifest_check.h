#ifndef COXSWAIN_SERVER_MEMBERSHIP_MANIFEST_CHECK_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MANIFEST_CHECK_H_

#include "absl/status/status.h"
#include "server/membership/member.h"
#include "server/options/options.h"

namespace coxswain::server {

// Fails with INVALID_ARGUMENT unless the components can work with the numbers
// of a manifest, whatever the options. To be called for one that was received,
// before it is stored, and for one that was read.
absl::Status CheckManifestBounds(const Manifest& manifest);

// Of a manifest that comes in. INVALID_ARGUMENT or RESOURCE_EXHAUSTED naming
// what is out of bounds, CheckManifestBounds() among them; FAILED_PRECONDITION
// if the worker's version is not served.
absl::Status CheckManifest(const Manifest& manifest,
                           const MembershipOptions& options);

// Writes what means the same in one way: no terms that have their defaults, no
// strides where they are row-major, of the library's version its series. For a
// manifest that was checked.
void NormaliseManifest(Manifest* manifest);
// That alone, also for one that was not checked.
void NormaliseLibraryVersion(Manifest* manifest);

// Of normalised ones.
bool SameParameter(const ParameterInfo& a, const ParameterInfo& b);
bool SameManifest(const Manifest& a, const Manifest& b);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MANIFEST_CHECK_H_
