#include "server/token/web_token.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/security/test_issuer.h"

namespace coxswain::server::web_token_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

constexpr char kSubject[] = "system:serviceaccount:space:train";
const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

// One of each kind for all tests: new keys take long.
const TestIssuer& IssuerOf(SignatureKind kind) {
  static const auto* const rsa = new TestIssuer(SignatureKind::kRs256);
  static const auto* const ec = new TestIssuer(SignatureKind::kEs256);
  return kind == SignatureKind::kRs256 ? *rsa : *ec;
}

auto IsRefused(const std::string& what) {
  return StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr(what));
}

// Both kinds of signatures.
class WebTokenTest : public testing::TestWithParam<SignatureKind> {
 protected:
  absl::StatusOr<TokenClaims> Check(absl::string_view token,
                                    absl::Time now = kNow) const {
    return CheckWebToken(token, keys_,
                         {TestIssuer::kName, TestIssuer::kAudience}, now);
  }
  static Json Claims() { return TestIssuer::Claims(kSubject, kNow); }
  std::string With(const std::string& name, const Json& value) const {
    Json claims = Claims();
    claims[name] = value;
    return issuer_.Sign(claims);
  }
  std::string Without(const std::string& name) const {
    Json claims = Claims();
    claims.erase(name);
    return issuer_.Sign(claims);
  }
  std::string WithHeader(const std::string& name, const Json& value) const {
    Json header = issuer_.Header();
    header[name] = value;
    return issuer_.Sign(header.dump(), Claims().dump());
  }

  const TestIssuer& issuer_ = IssuerOf(GetParam());
  const KeySet keys_ = KeySet::Parse(KeySetOf({issuer_.Key()})).value();
};

TEST_P(WebTokenTest, AValidOneNamesItsSubject) {
  ASSERT_OK_AND_ASSIGN(const TokenClaims claims, Check(issuer_.Sign(Claims())));
  EXPECT_EQ(claims.subject, kSubject);
  EXPECT_EQ(claims.expires, kNow + absl::Hours(1));
  // One audience may stand without a list, and others beside it.
  EXPECT_OK(Check(With("aud", "coxswain")));
  EXPECT_OK(Check(With("aud", {"vault", "coxswain"})));
  EXPECT_OK(Check(Without("nbf")));
}

TEST_P(WebTokenTest, ForOthersItDoesNotCount) {
  EXPECT_THAT(Check(With("aud", "vault")),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       AllOf(HasSubstr("'vault'"), HasSubstr("'coxswain'"),
                             HasSubstr("--token-audience"))));
  EXPECT_THAT(Check(With("aud", {"a", "b", "c", "d", "e\n"})),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       AllOf(HasSubstr("'a','b'"), Not(HasSubstr("'e")))));
  for (const Json& none : {Json(), Json(7), Json::array(), Json::object(),
                           Json::array({7}), Json("Coxswain"), Json("")}) {
    EXPECT_THAT(Check(With("aud", none)), IsRefused("'aud'")) << none;
  }
  EXPECT_THAT(Check(Without("aud")), IsRefused("no audience"));
}

TEST_P(WebTokenTest, OfAnotherIssuerItDoesNotCount) {
  EXPECT_THAT(Check(With("iss", "https://other.example")),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       AllOf(HasSubstr("'https://other.example'"),
                             HasSubstr(TestIssuer::kName),
                             HasSubstr("--token-issuer"))));
  EXPECT_THAT(Check(Without("iss")), IsRefused("'iss'"));
  EXPECT_THAT(Check(With("iss", {TestIssuer::kName})), IsRefused("'iss'"));
}

TEST_P(WebTokenTest, ItCountsBetweenItsDatesGiveOrTakeALittle) {
  const std::string token = issuer_.Sign(Claims());
  const absl::Time end = kNow + absl::Hours(1);
  EXPECT_OK(Check(token, end + kTokenLeeway - absl::Milliseconds(1)));
  EXPECT_THAT(Check(token, end + kTokenLeeway),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       AllOf(HasSubstr("expired at 2027-01-15T09:00:00Z"),
                             HasSubstr("--token-file"))));
  EXPECT_OK(Check(token, kNow - kTokenLeeway));
  EXPECT_THAT(Check(token, kNow - kTokenLeeway - absl::Milliseconds(1)),
              IsRefused("only from 2027-01-15T08:00:00Z"));
  EXPECT_THAT(Check(Without("exp")), IsRefused("'exp'"));
  for (const Json& none :
       {Json("2027-01-15"), Json(-1), Json(1e300), Json(), Json(true)}) {
    EXPECT_THAT(Check(With("exp", none)), IsRefused("'exp'")) << none;
    EXPECT_THAT(Check(With("nbf", none)), IsRefused("'nbf'")) << none;
  }
  EXPECT_OK(Check(With("exp", 1'800'000'000.5)));
}

TEST_P(WebTokenTest, ItsSubjectIsAName) {
  EXPECT_THAT(Check(Without("sub")), IsRefused("'sub'"));
  for (const Json& none : {Json(""), Json("a b"), Json("a\n"), Json("\u00e4"),
                           Json(7), Json(std::string(513, 'a'))}) {
    EXPECT_THAT(Check(With("sub", none)), IsRefused("'sub'")) << none;
  }
  EXPECT_OK(Check(With("sub", std::string(512, 'a'))));
}

TEST_P(WebTokenTest, WhatTheKeyHasNotSignedIsNotTrusted) {
  const TestIssuer stranger(GetParam());
  EXPECT_THAT(Check(stranger.Sign(Claims())), IsRefused("signature"));
  const std::string token = issuer_.Sign(Claims());
  std::vector<std::string> parts = absl::StrSplit(token, '.');
  Json other = Claims();
  other["sub"] = "system:serviceaccount:space:victim";
  EXPECT_THAT(
      Check(absl::StrCat(parts[0], ".", ToBase64Url(other.dump()), ".",
                         parts[2])),
      StatusIs(absl::StatusCode::kUnauthenticated,
               AllOf(HasSubstr("signature"), Not(HasSubstr("victim")))));
  EXPECT_THAT(Check(absl::StrCat(parts[0], ".", parts[1], ".")),
              IsRefused("signature"));
}

TEST_P(WebTokenTest, NoOtherKindOfSignatureCounts) {
  const std::string payload = ToBase64Url(Claims().dump());
  for (const char* const name : {"none", "None", "HS256", "RS512", "ES384",
                                 "PS256", "EdDSA", "rs256", ""}) {
    EXPECT_THAT(Check(WithHeader("alg", name)), IsRefused("neither by RS256"))
        << name;
    const std::string header =
        ToBase64Url(Json({{"alg", name}, {"kid", "k1"}}).dump());
    EXPECT_THAT(Check(absl::StrCat(header, ".", payload, ".")),
                IsRefused("neither by RS256"))
        << name;
  }
  EXPECT_THAT(Check(WithHeader("alg", {"RS256"})), IsRefused("neither"));
  // The name of the other kind, over a signature of this key.
  const bool rsa = GetParam() == SignatureKind::kRs256;
  EXPECT_THAT(Check(WithHeader("alg", rsa ? "ES256" : "RS256")),
              IsRefused("signature"));
}

TEST_P(WebTokenTest, APublicKeyIsNoSecretToSignWith) {
  const std::string secret = issuer_.Pem();
  const std::string text =
      absl::StrCat(ToBase64Url(R"({"alg":"HS256","kid":"k1"})"), ".",
                   ToBase64Url(Claims().dump()));
  unsigned char signature[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       signature, &size);
  const absl::string_view bytes(reinterpret_cast<char*>(signature), size);
  EXPECT_THAT(Check(absl::StrCat(text, ".", ToBase64Url(bytes))),
              IsRefused("neither by RS256"));
}

TEST_P(WebTokenTest, ItNamesAKeyThatIsThere) {
  EXPECT_THAT(
      Check(WithHeader("kid", "a-stranger's")),
      StatusIs(absl::StatusCode::kUnauthenticated,
               AllOf(HasSubstr("--token-keys"), Not(HasSubstr("stranger")))));
  EXPECT_THAT(Check(WithHeader("kid", 1)), IsRefused("'kid'"));
  EXPECT_THAT(
      Check(issuer_.Sign(Json({{"alg", issuer_.Header()["alg"]}}).dump(),
                         Claims().dump())),
      IsRefused("'kid'"));
  // A key that comes with the token is not trusted.
  EXPECT_OK(Check(WithHeader("jwk", issuer_.Key())));
  EXPECT_THAT(Check(TestIssuer(GetParam(), "k1")
                        .Sign(Json({{"alg", issuer_.Header()["alg"]},
                                    {"kid", "k1"},
                                    {"jwk", issuer_.Key()}})
                                  .dump(),
                              Claims().dump())),
              IsRefused("signature"));
  EXPECT_THAT(Check(WithHeader("crit", {"b64"})), IsRefused("'crit'"));
}

TEST_P(WebTokenTest, GarbageIsRefused) {
  const std::string good = issuer_.Sign(Claims());
  const std::pair<std::string, std::string> cases[] = {
      {"", "three parts"},
      {"a.b", "three parts"},
      {good + ".x", "three parts"},
      {"..", "header"},
      {good + "=", "base64url"},
      {good + "\n", "base64url"},
      {" " + good, "base64url"},
      {"e30.e30.!", "base64url"},
      {"e31.e30.", "base64url"},  // bits to spare that are set
      {ToBase64Url("[]") + ".e30.", "header"},
      {ToBase64Url("{}x") + ".e30.", "header"},
      {"e30.e30.", "neither"}};
  for (const auto& [token, what] : cases) {
    EXPECT_THAT(Check(token), IsRefused(what)) << token;
  }
  for (const char* const payload : {"", "7", "[]", "{", "{}x", "\"\xff\""}) {
    EXPECT_THAT(Check(issuer_.Sign(issuer_.Header().dump(), payload)),
                IsRefused("its payload"))
        << payload;
  }
}

TEST_P(WebTokenTest, HowMuchIsLimited) {
  EXPECT_THAT(Check(With("x", std::string(kMostWebTokenBytes, 'x'))),
              IsRefused("at most 8192"));
  EXPECT_OK(Check(With("x", std::string(kMostWebTokenBytes / 2, 'x'))));
  const std::string deep = absl::StrCat(R"({"x":)", std::string(2000, '['),
                                        std::string(2000, ']'), "}");
  EXPECT_THAT(Check(issuer_.Sign(issuer_.Header().dump(), deep)),
              IsRefused("its payload"));
}

INSTANTIATE_TEST_SUITE_P(Kinds, WebTokenTest,
                         testing::Values(SignatureKind::kRs256,
                                         SignatureKind::kEs256),
                         [](const auto& info) {
                           return info.param == SignatureKind::kRs256 ? "Rs256"
                                                                      : "Es256";
                         });

}  // namespace
}  // namespace coxswain::server::web_token_test
