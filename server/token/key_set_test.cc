#include "server/token/key_set.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/security/test_issuer.h"

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

class KeySetTest : public testing::Test {
 protected:
  static auto IsRefused(const std::string& what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  }
  // One of this issuer's keys with a member changed.
  static Json With(const TestIssuer& issuer, const std::string& name,
                   const Json& value) {
    Json key = issuer.Key();
    key[name] = value;
    return key;
  }

  const TestIssuer rsa_{SignatureKind::kRs256, "r"};
  const TestIssuer ec_{SignatureKind::kEs256, "e"};
};

TEST_F(KeySetTest, HasKeysOfBothKindsByTheirIds) {
  ASSERT_OK_AND_ASSIGN(const KeySet keys,
                       KeySet::Parse(KeySetOf({rsa_.Key(), ec_.Key()})));
  EXPECT_EQ(keys.size(), 2);
  ASSERT_NE(keys.Find("r"), nullptr);
  EXPECT_EQ(keys.Find("r")->kind(), SignatureKind::kRs256);
  ASSERT_NE(keys.Find("e"), nullptr);
  EXPECT_EQ(keys.Find("e")->kind(), SignatureKind::kEs256);
  EXPECT_EQ(keys.Find("x"), nullptr);
  EXPECT_EQ(keys.Find(""), nullptr);
}

TEST_F(KeySetTest, WhatIsForSomethingElseIsLeftOut) {
  const std::vector<Json> others = {
      {{"kty", "oct"}, {"k", "c2VjcmV0"}, {"kid", "1"}, {"alg", "HS256"}},
      {{"kty", "OKP"}, {"crv", "Ed25519"}, {"kid", "2"}},
      With(rsa_, "use", "enc"),
      With(rsa_, "alg", "RS512"),
      With(ec_, "alg", "RS256"),
      With(ec_, "crv", "P-384")};
  EXPECT_THAT(KeySet::Parse(KeySetOf(others)), IsRefused("RS256 or ES256"));
  std::vector<Json> all = others;
  all.push_back(ec_.Key());
  ASSERT_OK_AND_ASSIGN(const KeySet keys, KeySet::Parse(KeySetOf(all)));
  EXPECT_EQ(keys.size(), 1);
}

TEST_F(KeySetTest, WhatIsWrongIsNamedWithoutShowingIt) {
  const std::string secret = "c2VjcmV0LXNlY3JldA";
  Json nameless = ec_.Key();
  nameless.erase("kid");
  const std::pair<Json, std::string> cases[] = {
      {With(rsa_, "d", secret), "private key"},
      {With(ec_, "d", secret), "private key"},
      {With(rsa_, "n", secret), "103 bits"},
      {With(rsa_, "n", secret + "="), "'n' is no number"},
      {With(rsa_, "e", 65537), "'e' is no number"},
      {With(ec_, "x", secret), "32 bytes"},
      {With(ec_, "y", ec_.Key()["x"]), "no point"},
      {With(ec_, "kid", ""), "'kid'"},
      {With(ec_, "kid", 7), "'kid'"},
      {With(ec_, "kid", std::string(257, 'x')), "'kid'"},
      {nameless, "'kid'"},
      {Json("key"), "no JSON object"}};
  for (const auto& [key, what] : cases) {
    EXPECT_THAT(KeySet::Parse(KeySetOf({rsa_.Key(), key})),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("key 2 of 2"), HasSubstr(what),
                               Not(HasSubstr(secret)))));
  }
  EXPECT_THAT(KeySet::Parse(KeySetOf({rsa_.Key(), rsa_.Key()})),
              IsRefused("the same 'kid'"));
}

TEST_F(KeySetTest, OtherTextsAreNone) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("7"),
        std::string("{}"), std::string(R"({"keys":{}})"),
        std::string("{\"keys\":\"\xff\"}"), rsa_.Pem(),
        absl::StrCat(KeySetOf({rsa_.Key()}), "x")}) {
    EXPECT_THAT(KeySet::Parse(text), IsRefused("no JSON Web Key Set")) << text;
  }
  EXPECT_THAT(KeySet::Parse(R"({"keys":[]})"), IsRefused("no key"));
}

TEST_F(KeySetTest, HowMuchIsLimited) {
  const std::vector<Json> many(KeySet::kMostKeys + 1, Json::object());
  EXPECT_THAT(KeySet::Parse(KeySetOf(many)), IsRefused("at most 64"));
  // As deep as a file may be long: no stack is used up.
  const std::string deep(1 << 20, '[');
  EXPECT_THAT(KeySet::Parse(R"({"keys":)" + deep), IsRefused("no JSON"));
  const std::string nested = absl::StrCat(
      R"({"x":)", std::string(200'000, '['), std::string(200'000, ']'),
      R"(,"keys":[)", ec_.Key().dump(), "]}");
  EXPECT_THAT(KeySet::Parse(nested), IsRefused("no JSON"));
}

}  // namespace
}  // namespace coxswain::server
