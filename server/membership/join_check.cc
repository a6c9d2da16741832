#include "server/membership/join_check.h"

#include <algorithm>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "server/generation/job_name.h"
#include "server/membership/manifest_check.h"

namespace coxswain::server {
namespace {

constexpr int kMaxSlot = 65535;

// Names end up in logs and error messages: no spaces, no control characters.
absl::Status CheckName(absl::string_view what, absl::string_view name,
                       int max_bytes) {
  const bool valid = name.size() <= static_cast<size_t>(max_bytes) &&
                     !absl::StrContains(name, ' ') && !HasControls(name);
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " must have at most ", max_bytes,
                   " bytes without spaces or control characters, unlike '",
                   absl::CHexEscape(name.substr(0, max_bytes)), "'"));
}

}  // namespace

absl::Status CheckJoin(const JoinRequest& request,
                       const MembershipOptions& options) {
  COXSWAIN_RETURN_IF_ERROR(ValidateJobName(request.job));
  if (request.identity.node.empty()) {
    return absl::InvalidArgumentError("identity.node is empty");
  }
  const int max_name = options.max_name_bytes;
  COXSWAIN_RETURN_IF_ERROR(
      CheckName("identity.node", request.identity.node, max_name));
  COXSWAIN_RETURN_IF_ERROR(CheckName("host", request.host, max_name));
  COXSWAIN_RETURN_IF_ERROR(CheckName("address", request.address, max_name));
  if (!request.catch_up_address.empty()) {
    COXSWAIN_RETURN_IF_ERROR(
        CheckName("catch_up.address", request.catch_up_address, max_name));
  }
  if (request.identity.slot < 0 || request.identity.slot > kMaxSlot) {
    return absl::InvalidArgumentError(
        absl::StrCat("identity.slot must be 0 to ", kMaxSlot, ", not ",
                     request.identity.slot));
  }
  if (request.incarnation == Incarnation(0)) {
    return absl::InvalidArgumentError("incarnation must not be 0");
  }
  if (request.topology.size() >
      static_cast<size_t>(options.max_topology_keys)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        request.topology.size(), " topology keys; max_topology_keys is ",
        options.max_topology_keys));
  }
  for (const std::string& key : request.topology) {
    COXSWAIN_RETURN_IF_ERROR(
        CheckName("a topology key", key, options.max_topology_key_bytes));
  }
  if (request.after_generation < Generation(0) || request.attempt < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "after_generation and attempt must be at least 0, not ",
        request.after_generation.value(), " and ", request.attempt));
  }
  if (request.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("timeout_ms must be more than 0");
  }
  return CheckManifest(request.manifest, options);
}

}  // namespace coxswain::server
