#include "server/token/security.h"

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "server/token/token_table.h"
#include "server/token/token_verifier.h"

namespace coxswain::server {
namespace {

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

}  // namespace

absl::Status SecurityOptions::ValidateTokens() const {
  const bool signed_ones = !token_keys.empty();
  if (!signed_ones && !token_rules.issuer.empty()) {
    return Wrong(
        "--token-issuer without --token-keys: give the file with the issuer's "
        "public keys, which `kubectl get --raw /openid/v1/jwks` prints");
  }
  if (signed_ones && token_rules.issuer.empty()) {
    return Wrong(
        "--token-keys without --token-issuer: name the issuer of the tokens; "
        "`kubectl get --raw /.well-known/openid-configuration` shows it");
  }
  if (signed_ones && token_rules.audience.empty()) {
    return Wrong(
        "--token-audience is empty: tokens for any audience would be accepted");
  }
  if (signed_ones && tokens.empty()) {
    return Wrong(
        "--token-keys without --tokens: give a file with the job of each "
        "subject, in "
        "lines such as 'job/NAME subject:SUBJECT'");
  }
  if (tokens.empty()) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(const auto table, TokenTable::Open(tokens));
  if (!signed_ones && table->NamesSubjects()) {
    return Wrong(
        absl::StrCat(tokens,
                     " names subjects, which only signed tokens have: give "
                     "--token-keys and --token-issuer"));
  }
  if (!signed_ones) return absl::OkStatus();
  return TokenVerifier::Open(token_keys, token_rules, Clock::Real()).status();
}

absl::Status SecurityOptions::Validate(absl::Time now) const {
  COXSWAIN_RETURN_IF_ERROR(CheckTlsFiles(tls, now));
  if (tls.cert.empty() && !tls.ca.empty()) {
    return absl::InvalidArgumentError(
        "--tls-ca without --tls-cert and --tls-key: certificates are sent on "
        "encrypted connections only");
  }
  if (encrypts() && !identifies()) {
    return absl::InvalidArgumentError(
        "--tls-cert alone would encrypt, but let every caller do everything: "
        "give --tls-ca, which signs the certificates of jobs and operators, or "
        "--tokens");
  }
  return ValidateTokens();
}

}  // namespace coxswain::server
