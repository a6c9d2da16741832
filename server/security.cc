#include "server/security.h"

#include "base/status_macros.h"
#include "server/rpc/token_table.h"

namespace coxswain::server {

absl::Status SecurityOptions::Validate(absl::Time now) const {
  COXSWAIN_RETURN_IF_ERROR(CheckTlsFiles(tls, now));
  if (tls.cert.empty() && !tls.ca.empty()) {
    return absl::InvalidArgumentError(
        "--tls-ca without --tls-cert and --tls-key: certificates are shown on "
        "encrypted connections only");
  }
  if (encrypts() && !identifies()) {
    return absl::InvalidArgumentError(
        "--tls-cert alone would encrypt what everyone may do: give --tls-ca, "
        "which vouches for the certificates of jobs and operators, or "
        "--tokens");
  }
  return tokens.empty() ? absl::OkStatus() : TokenTable::Open(tokens).status();
}

}  // namespace coxswain::server
