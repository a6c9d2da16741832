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
