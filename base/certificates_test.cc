#include "base/certificates.h"

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

const absl::Time kBegin = absl::FromUnixSeconds(1'000'000'000);
const absl::Time kEnd = kBegin + absl::Hours(1);

TEST(CertificatesTest, ACertificateRunsOut) {
  ASSERT_OK_AND_ASSIGN(const auto authority,
                       CertificateAuthority::Create("ca", {kBegin, kEnd}));
  ASSERT_OK_AND_ASSIGN(
      const KeyPair pair,
      authority.Issue({"worker", "coxswain://job/a", {}, {kBegin, kEnd}}));
  EXPECT_OK(CheckNotExpired(pair.cert, kBegin));
  EXPECT_OK(CheckNotExpired(pair.cert, kEnd));
  EXPECT_THAT(CheckNotExpired(pair.cert, kEnd + absl::Seconds(1)),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       HasSubstr("'worker' expired at 2001-09-09")));
  EXPECT_THAT(CheckNotExpired("nothing", kBegin),
              StatusIs(absl::StatusCode::kUnauthenticated, testing::_));
}

TEST(CertificatesTest, OnlyTheAuthorityThatHasSignedItVouchesForIt) {
  ASSERT_OK_AND_ASSIGN(const auto ours,
                       CertificateAuthority::Create("ca", {kBegin, kEnd}));
  // It calls itself the same.
  ASSERT_OK_AND_ASSIGN(const auto others,
                       CertificateAuthority::Create("ca", {kBegin, kEnd}));
  ASSERT_OK_AND_ASSIGN(
      const KeyPair pair,
      ours.Issue({"worker", "coxswain://job/a", {}, {kBegin, kEnd}}));
  EXPECT_OK(CheckSignedBy(pair.cert, ours.pair().cert));
  EXPECT_OK(CheckSignedBy(pair.cert, others.pair().cert + ours.pair().cert));
  EXPECT_THAT(CheckSignedBy(pair.cert, others.pair().cert),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("unable to get local issuer certificate")));
  EXPECT_THAT(CheckSignedBy("nothing", ours.pair().cert),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  EXPECT_FALSE(CheckSignedBy(pair.cert, "nothing").ok());
}

TEST(CertificatesTest, NamesItsHosts) {
  ASSERT_OK_AND_ASSIGN(const auto authority,
                       CertificateAuthority::Create("ca", {kBegin, kEnd}));
  ASSERT_OK_AND_ASSIGN(const KeyPair pair,
                       authority.Issue({"coordinator",
                                        kCoordinatorUri,
                                        {"head.example", "10.0.0.1", "::1"},
                                        {kBegin, kEnd}}));
  ASSERT_OK_AND_ASSIGN(const CertificateFacts facts,
                       ReadCertificate(pair.cert));
  EXPECT_THAT(facts.hosts,
              testing::ElementsAre("head.example", "10.0.0.1", "::1"));
  EXPECT_THAT(facts.uris, testing::ElementsAre(kCoordinatorUri));
  for (const char* host : {"head.example", "10.0.0.1", "::1"}) {
    EXPECT_TRUE(NamesHost(pair.cert, host)) << host;
  }
  for (const char* host : {"example", "10.0.0.2", "localhost", ""}) {
    EXPECT_FALSE(NamesHost(pair.cert, host)) << host;
  }
}

TEST(CertificatesTest, OneNameOfOursIdentifiesTheHolder) {
  const auto job = SubjectOf({"https://example.org", "coxswain://job/a"});
  ASSERT_TRUE(job.has_value());
  EXPECT_FALSE(job->is_operator);
  EXPECT_EQ(job->job, "a");
  const auto holder = SubjectOf({"coxswain://operator"});
  ASSERT_TRUE(holder.has_value());
  EXPECT_TRUE(holder->is_operator);
}

TEST(CertificatesTest, NoneOrSeveralIdentifyNoHolder) {
  EXPECT_FALSE(SubjectOf({}).has_value());
  EXPECT_FALSE(SubjectOf({"coxswain://job/"}).has_value());
  EXPECT_FALSE(SubjectOf({"coxswain://job/a", "coxswain://job/b"}).has_value());
  EXPECT_FALSE(
      SubjectOf({"coxswain://job/a", "coxswain://operator"}).has_value());
}

}  // namespace
}  // namespace coxswain
