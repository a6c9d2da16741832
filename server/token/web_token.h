#ifndef COXSWAIN_SERVER_TOKEN_WEB_TOKEN_H_
#define COXSWAIN_SERVER_TOKEN_WEB_TOKEN_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/token/key_set.h"

namespace coxswain::server {

// JSON Web Tokens (RFC 7519) as their issuer signs them, such as the projected
// service-account tokens of Kubernetes. Plain functions and values.

// As much as gRPC takes for all headers of a call.
inline constexpr size_t kMostWebTokenBytes = 8192;
// Kubernetes: "system:serviceaccount:" with a namespace of up to 63 and a name
// of up to 253 characters.
inline constexpr size_t kMostSubjectBytes = 512;
// How far this host's clock and the issuer's may differ.
inline constexpr absl::Duration kTokenLeeway = absl::Seconds(10);

// Whose tokens count, and which of these are meant for us.
struct TokenRules {
  std::string issuer;    // `iss` is this
  std::string audience;  // `aud` is this, or has it
};

// The claims of a valid token that are used.
struct TokenClaims {
  std::string subject;
  absl::Time expires;
};

// Returns whether a name can be a subject here: visible ASCII, not longer than
// above.
bool IsSubject(absl::string_view text);

// Returns whether the text has three parts with dots between, as few other
// secrets have.
bool LooksLikeWebToken(absl::string_view text);

// Returns the token's claims, if one of the keys has signed it (RS256 or ES256,
// by the key that it names), it counts at `now`, and it keeps to the rules.
// Fails with UNAUTHENTICATED, describing what is wrong and how to go on. Shows
// nothing that the issuer has not signed: any caller may have sent it.
absl::StatusOr<TokenClaims> CheckWebToken(absl::string_view token,
                                          const KeySet& keys,
                                          const TokenRules& rules,
                                          absl::Time now);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_TOKEN_WEB_TOKEN_H_
