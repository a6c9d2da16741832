#include "tests/security/test_certificates.h"

#include <sys/stat.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

CertificateAuthority NewAuthority() {
  return CertificateAuthority::Create("test authority", ValidNow()).value();
}

}  // namespace

Validity ValidNow() {
  const absl::Time now = Clock::Real()->WallTime();
  return {now - absl::Hours(1), now + absl::Hours(1)};
}

TestCertificates::TestCertificates(const std::string& name)
    : folder_(absl::StrCat(testing::TempDir(), "/", name)),
      ca_(NewAuthority()) {
  mkdir(folder_.c_str(), 0700);
  Write("ca.crt", ca_.pair().cert);
}

void TestCertificates::Renew() {
  ca_ = NewAuthority();
  Write("ca.crt", ca_.pair().cert);
}

TlsFiles TestCertificates::Issue(const std::string& name,
                                 const std::string& uri) {
  return Issue(name, uri, ValidNow());
}

TlsFiles TestCertificates::Issue(const std::string& name,
                                 const std::string& uri,
                                 const Validity& validity) {
  const KeyPair pair = ca_.Issue({name, uri, {"127.0.0.1"}, validity}).value();
  return {Write(name + ".crt", pair.cert), Write(name + ".key", pair.key),
          Path("ca.crt")};
}

std::string TestCertificates::Path(const std::string& file) const {
  return absl::StrCat(folder_, "/", file);
}

std::string TestCertificates::Read(const std::string& file) const {
  return WatchedFile(Path(file)).Read().value();
}

std::string TestCertificates::Write(const std::string& file,
                                    const std::string& text) const {
  const std::string path = Path(file);
  const std::string next = path + ".new";
  std::ofstream(next) << text;
  EXPECT_EQ(std::rename(next.c_str(), path.c_str()), 0);
  return path;
}

}  // namespace coxswain
