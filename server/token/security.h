#ifndef COXSWAIN_SERVER_TOKEN_SECURITY_H_
#define COXSWAIN_SERVER_TOKEN_SECURITY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/tls_files.h"
#include "server/token/web_token.h"

namespace coxswain::server {

// Which callers are allowed, and how they connect. Empty: all, in plain text.
struct SecurityOptions {
  // With `cert`, connections are encrypted. With `ca`, callers must present a
  // certificate that it has signed, or a token where there are tokens.
  TlsFiles tls;
  // A line for each token: "operator TOKEN" or "job/NAME TOKEN".
  std::string tokens;
  // With the public keys of an issuer (a JSON Web Key Set) its signed tokens
  // count too, if their subject has a line "job/NAME subject:SUBJECT".
  std::string token_keys;
  TokenRules token_rules = {"", "coxswain"};

  bool encrypts() const { return !tls.cert.empty(); }
  // Returns whether each caller is authenticated: an operator, or a job.
  bool identifies() const { return !tls.ca.empty() || !tokens.empty(); }

  // Fails with INVALID_ARGUMENT, naming the file that is wrong or missing.
  absl::Status Validate(absl::Time now) const;

 private:
  absl::Status ValidateTokens() const;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_TOKEN_SECURITY_H_
