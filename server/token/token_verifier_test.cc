#include "server/token/token_verifier.h"

#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/security/test_issuer.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

constexpr char kSubject[] = "system:serviceaccount:space:train";

auto IsRefused(const std::string& what) {
  return StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr(what));
}

class TokenVerifierTest : public testing::Test {
 protected:
  TokenVerifierTest()
      : path_(absl::StrCat(
            testing::TempDir(), "/keys-",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {}

  // In one rename, as a program that renews keys does.
  void Write(const std::string& text) const {
    const std::string next = path_ + ".new";
    std::ofstream(next) << text;
    ASSERT_EQ(std::rename(next.c_str(), path_.c_str()), 0);
  }
  auto Open() {
    return TokenVerifier::Open(
        path_, {TestIssuer::kName, TestIssuer::kAudience}, &clock_);
  }
  std::string Token(const TestIssuer& issuer) const {
    return issuer.Sign(TestIssuer::Claims(kSubject, clock_.WallTime()));
  }

  const std::string path_;
  FakeClock clock_;
  const TestIssuer first_{SignatureKind::kEs256, "first"};
  const TestIssuer second_{SignatureKind::kRs256, "second"};
};

TEST_F(TokenVerifierTest, ATokenCountsUntilItRunsOut) {
  Write(KeySetOf({first_.Key()}));
  ASSERT_OK_AND_ASSIGN(const auto verifier, Open());
  const std::string token = Token(first_);
  for (int minute = 0; minute < 60; ++minute) {
    ASSERT_OK_AND_ASSIGN(const std::string subject, verifier->SubjectOf(token));
    EXPECT_EQ(subject, kSubject);
    clock_.Advance(absl::Minutes(1));
  }
  EXPECT_OK(verifier->SubjectOf(token));
  clock_.Advance(kTokenLeeway);
  EXPECT_THAT(verifier->SubjectOf(token), IsRefused("expired"));
  EXPECT_OK(verifier->SubjectOf(Token(first_)));
}

TEST_F(TokenVerifierTest, KeysAreReadAgainAndTheOldOnesForgotten) {
  Write(KeySetOf({first_.Key()}));
  ASSERT_OK_AND_ASSIGN(const auto verifier, Open());
  const std::string old = Token(first_);
  const std::string next = Token(second_);
  EXPECT_OK(verifier->SubjectOf(old));
  EXPECT_THAT(verifier->SubjectOf(next), IsRefused("--token-keys"));
  Write(KeySetOf({first_.Key(), second_.Key()}));
  EXPECT_OK(verifier->SubjectOf(next));
  EXPECT_OK(verifier->SubjectOf(old));
  Write(KeySetOf({second_.Key()}));
  EXPECT_THAT(verifier->SubjectOf(old), IsRefused("--token-keys"));
  EXPECT_OK(verifier->SubjectOf(next));
}

TEST_F(TokenVerifierTest, WhatCannotBeUnderstoodChangesNothing) {
  Write(KeySetOf({first_.Key()}));
  ASSERT_OK_AND_ASSIGN(const auto verifier, Open());
  Write("what is this");
  EXPECT_OK(verifier->SubjectOf(Token(first_)));
  std::remove(path_.c_str());
  EXPECT_OK(verifier->SubjectOf(Token(first_)));
  Write(KeySetOf({second_.Key()}));
  EXPECT_OK(verifier->SubjectOf(Token(second_)));
}

TEST_F(TokenVerifierTest, AFileThatCannotBeUnderstoodIsAnErrorAtTheStart) {
  const auto wrong = [this](const std::string& what) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    testing::AllOf(HasSubstr(path_), HasSubstr(what)));
  };
  EXPECT_THAT(Open(), wrong(""));
  Write("what is this");
  EXPECT_THAT(Open(), wrong("JSON Web Key Set"));
}

TEST(KnownTokensTest, NeverHoldsMoreThanItMay) {
  const absl::Time now = absl::UnixEpoch();
  KnownTokens known(3);
  known.Add("a", {"a", now + absl::Seconds(1)}, now);
  known.Add("b", {"b", now + absl::Hours(1)}, now);
  known.Add("c", {"c", now + absl::Seconds(1)}, now);
  EXPECT_EQ(known.size(), 3);
  // Those that have run out go first,
  const absl::Time later = now + absl::Seconds(1) + kTokenLeeway;
  EXPECT_EQ(known.Find("a", later), nullptr);
  known.Add("d", {"d", now + absl::Hours(1)}, later);
  EXPECT_EQ(known.size(), 2);
  ASSERT_NE(known.Find("b", later), nullptr);
  EXPECT_EQ(known.Find("b", later)->subject, "b");
  // and all of them if none has.
  known.Add("e", {"e", now + absl::Hours(1)}, later);
  known.Add("f", {"f", now + absl::Hours(1)}, later);
  EXPECT_EQ(known.size(), 1);
  EXPECT_EQ(known.Find("b", later), nullptr);
  EXPECT_NE(known.Find("f", later), nullptr);
  known.Clear();
  EXPECT_EQ(known.Find("f", later), nullptr);
}

}  // namespace
}  // namespace coxswain::server
