#include "base/tls_files.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/certificates.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);
const Validity kValid = {kNow - absl::Hours(1), kNow + absl::Hours(1)};

std::string Write(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(
      testing::TempDir(), "/",
      testing::UnitTest::GetInstance()->current_test_info()->name(), name);
  std::ofstream(path) << text;
  return path;
}

KeyPair Issue(const CertificateAuthority& ca, const Validity& validity) {
  return *ca.Issue(
      {"worker", "coxswain://job/a", {"host", "10.1.2.3"}, validity});
}

TEST(TlsFilesTest, LoopbackIsWhatOnlyThisMachineCanReach) {
  for (const char* const host :
       {"127.0.0.1", "127.255.0.9", "::1", "[::1]", "localhost"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* const host :
       {"0.0.0.0", "[::]", "10.0.0.1", "127.evil.example", "head", "", "127"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

TEST(TlsFilesTest, AcceptsWhatBelongsTogether) {
  const auto ca = *CertificateAuthority::Create("ca", kValid);
  const KeyPair pair = Issue(ca, kValid);
  const TlsFiles files = {Write("cert", pair.cert), Write("key", pair.key),
                          Write("ca", ca.pair().cert)};
  EXPECT_OK(CheckTlsFiles(files, kNow));
  EXPECT_OK(CheckTlsFiles({}, kNow));
  ASSERT_OK_AND_ASSIGN(const auto facts, ReadCertificate(pair.cert));
  EXPECT_EQ(facts.common_name, "worker");
  EXPECT_THAT(facts.uris, ElementsAre("coxswain://job/a"));
  EXPECT_EQ(facts.not_after, kValid.not_after);
}

// Of an RSA key with 1024 bits, valid from 2026 for 100 years.
constexpr char kWeak[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIB/DCCAWWgAwIBAgIUWmKA4bsfRtdH3z5k4tTNaV0X9tswDQYJKoZIhvcNAQEL\n"
    "BQAwDzENMAsGA1UEAwwEd2VhazAgFw0yNjExMjgyMDE2MTJaGA8yMTI2MTEwNDIw\n"
    "MTYxMlowDzENMAsGA1UEAwwEd2VhazCBnzANBgkqhkiG9w0BAQEFAAOBjQAwgYkC\n"
    "gYEAya0BZWAE9AhMyYr0KPrhkn7thd5HezWyvCmNjNGJwrFJFKsF/M6HWnthocH6\n"
    "CCGPWHiI+h3eQP6IsWrJ/6gRdYqMIJ2KezrV95mGuLO8Dhd4lXpd2XWFHHGiP1or\n"
    "IQY+0EGa8XqNRZAm6abTjPB2iYsPdlmfNkaZf4fHJUIko70CAwEAAaNTMFEwHQYD\n"
    "VR0OBBYEFFX0FTpBmoK2KaUJ4Td7DeVMyACiMB8GA1UdIwQYMBaAFFX0FTpBmoK2\n"
    "KaUJ4Td7DeVMyACiMA8GA1UdEwEB/wQFMAMBAf8wDQYJKoZIhvcNAQELBQADgYEA\n"
    "CMzGnj1N+IQwmdweTbvJ7AO7xMl4MlXP23UZA3nDHhA1BQLG68TwmrVy0vkwZudS\n"
    "rCVWz4fVSnxMr2kSQaxFFeAp5pXgRZd4bd/7/kxdN+axZW1kKxuCA5wZR3DfIW8I\n"
    "ss1wzqrlzUZy0RgOp1cA7D5ukI8IR3YxsyLsERM1fhM=\n"
    "-----END CERTIFICATE-----\n";

TEST(TlsFilesTest, RefusesWhatOpenSslDoesNotUse) {
  const auto ca = *CertificateAuthority::Create("ca", kValid);
  const KeyPair pair = Issue(ca, kValid);
  const std::string key = Write("key", pair.key);
  const std::string weak = Write("weak", kWeak);
  const std::string behind = Write("behind", pair.cert + kWeak);
  EXPECT_THAT(CheckTlsFiles({weak, key, ""}, kNow),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(weak), HasSubstr("certificate 1 in"),
                             HasSubstr("'weak', is too weak"),
                             HasSubstr("ee key too small"))));
  EXPECT_THAT(CheckTlsFiles({behind, key, ""}, kNow),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("certificate 2 in"),
                             HasSubstr("ca key too small"))));
  EXPECT_THAT(CheckTlsFiles({"", "", weak}, kNow),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(weak)));
  // Others of a list can be used.
  EXPECT_OK(
      CheckTlsFiles({"", "", Write("list", kWeak + ca.pair().cert)}, kNow));
}

TEST(TlsFilesTest, NamesTheFileThatIsWrong) {
  const auto ca = *CertificateAuthority::Create("ca", kValid);
  const KeyPair pair = Issue(ca, kValid);
  const std::string cert = Write("cert", pair.cert);
  const std::string key = Write("key", pair.key);
  const std::string other = Write("other", Issue(ca, kValid).key);
  const std::string junk = Write("junk", "junk");
  const struct {
    TlsFiles files;
    std::string about;
    std::string what;
  } cases[] = {
      {{cert, "", ""}, "--tls-key", "missing"},
      {{"", key, ""}, "--tls-cert", "missing"},
      {{cert, other, ""}, other, "not that of the certificate"},
      {{junk, key, ""}, junk, "no certificate"},
      {{cert, junk, ""}, junk, "no private key"},
      {{"", "", junk}, junk, "no certificate"},
      {{"", "", junk + "-absent"}, junk + "-absent", "No such file"},
  };
  for (const auto& one : cases) {
    EXPECT_THAT(CheckTlsFiles(one.files, kNow),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(one.about), HasSubstr(one.what))));
  }
}

TEST(TlsFilesTest, NamesWhatHasExpired) {
  const auto ca = *CertificateAuthority::Create("ca", kValid);
  const KeyPair pair = Issue(ca, kValid);
  const TlsFiles files = {Write("cert", pair.cert), Write("key", pair.key), ""};
  EXPECT_THAT(CheckTlsFiles(files, kNow + absl::Hours(2)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(files.cert), HasSubstr("expired"))));
  EXPECT_THAT(CheckTlsFiles(files, kNow - absl::Hours(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("clock")));
}

TEST(TlsFilesTest, TokensDoNotLeaveTheMachineInPlainText) {
  ClientSecurity security;
  security.token_file = Write("token", "secret-secret-secret");
  EXPECT_OK(CheckClientSecurity(security, "127.0.0.1:1,[::1]:2", kNow));
  EXPECT_THAT(CheckClientSecurity(security, "localhost:1,10.0.0.1:2", kNow),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("10.0.0.1:2"), HasSubstr("--tls-ca"))));
  security.insecure = true;
  EXPECT_OK(CheckClientSecurity(security, "10.0.0.1:2", kNow));
  security.token_file += "-absent";
  EXPECT_THAT(CheckClientSecurity(security, "localhost:1", kNow),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
}

TEST(TlsFilesTest, NamesThatWouldBeTwoAreRefused) {
  const auto ca = *CertificateAuthority::Create("ca", kValid);
  EXPECT_THAT(
      ca.Issue({"x", "coxswain://job/a,URI:coxswain://operator", {}, kValid}),
      StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  EXPECT_THAT(ca.Issue({"x", "coxswain://job/a", {"h,IP:10.0.0.1"}, kValid}),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
}

TEST(WatchedFileTest, SeesThatAFileWasReplaced) {
  WatchedFile file(Write("file", "one"));
  EXPECT_TRUE(file.Changed());
  EXPECT_EQ(file.Read().value_or(""), "one");
  EXPECT_FALSE(file.Changed());
  const std::string next = Write("file.new", "two");
  ASSERT_EQ(std::rename(next.c_str(), file.path().c_str()), 0);
  EXPECT_TRUE(file.Changed());
  EXPECT_EQ(file.Read().value_or(""), "two");
  ASSERT_EQ(std::remove(file.path().c_str()), 0);
  EXPECT_TRUE(file.Changed());
  EXPECT_FALSE(file.Read().ok());
}

}  // namespace
}  // namespace coxswain
