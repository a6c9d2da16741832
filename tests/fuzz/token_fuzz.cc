// Tokens that an issuer signs, and sets of the keys that they are checked with.

#include <string>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/public_key.h"
#include "server/token/key_set.h"
#include "server/token/web_token.h"
#include "tests/fuzz/decoders.h"
#include "tests/security/test_issuer.h"

namespace coxswain {
namespace {

// Within the dates of the corpus.
const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

struct Issuer {
  TestIssuer issuer{SignatureKind::kEs256};
  server::KeySet keys = server::KeySet::Parse(KeySetOf({issuer.Key()})).value();
};

const Issuer& TheIssuer() {
  static const auto* const issuer = new Issuer;
  return *issuer;
}

absl::StatusOr<server::TokenClaims> Check(absl::string_view token) {
  return server::CheckWebToken(token, TheIssuer().keys,
                               {TestIssuer::kName, TestIssuer::kAudience},
                               kNow);
}

}  // namespace

// As a whole token without a valid signature; and as a header and its claims,
// with a newline between, that the issuer signs, so that both are read.
void FuzzWebToken(absl::string_view input) {
  COXSWAIN_CHECK(!Check(input).ok());
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(input, absl::MaxSplits('\n', 1));
  const auto claims = Check(TheIssuer().issuer.Sign(parts.first, parts.second));
  if (!claims.ok()) return;
  COXSWAIN_CHECK(server::IsSubject(claims->subject));
  COXSWAIN_CHECK(claims->expires + server::kTokenLeeway > kNow);
}

void FuzzKeySet(absl::string_view input) {
  const auto keys = server::KeySet::Parse(input);
  if (!keys.ok()) return;
  COXSWAIN_CHECK(keys->size() > 0 && keys->size() <= server::KeySet::kMostKeys);
  for (const char* const id : {"k1", "r", ""}) {
    const PublicKey* const key = keys->Find(id);
    if (key != nullptr) key->HasSigned(input, input.substr(0, 64));
  }
}

}  // namespace coxswain
