#include "transport/certificate_watch.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/certificates.h"
#include "base/fake_clock.h"
#include "base/logging.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return file.good() ? text.str() : "";
}

// The lines about certificates that this process logs.
class Lines : public LogSink {
 public:
  Lines() { AddLogSink(this); }
  ~Lines() override { RemoveLogSink(this); }
  void OnLine(const LogLine& line) override {
    if (!absl::StartsWith(line.event, "certificates_")) return;
    MutexLock lock(&mutex_);
    lines_.push_back(FormatLogLine(LogFormat::kText, line));
  }
  std::vector<std::string> Take() {
    MutexLock lock(&mutex_);
    return std::move(lines_);
  }

 private:
  Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

class CertificateIntakeTest : public testing::Test {
 protected:
  CertificateIntakeTest() {
    files_ = {Path("cert"), Path("key"), Path("ca")};
    Write(files_.ca, authority_.pair().cert);
    first_ = Issue();
    WritePair(first_);
  }

  static std::string Path(const std::string& file) {
    return absl::StrCat(
        testing::TempDir(), "/",
        testing::UnitTest::GetInstance()->current_test_info()->name(), file);
  }
  // In one piece, so that another file is there.
  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path + ".new") << text;
    ASSERT_EQ(std::rename((path + ".new").c_str(), path.c_str()), 0);
  }
  void WritePair(const KeyPair& pair) const {
    Write(files_.cert, pair.cert);
    Write(files_.key, pair.key);
  }
  KeyPair Issue(absl::Duration from_now = -absl::Hours(1)) const {
    const absl::Time begin = clock_.WallTime() + from_now;
    return *authority_.Issue(
        {"worker", "coxswain://job/a", {}, {begin, begin + absl::Hours(2)}});
  }
  // As often as files that have changed need, and more.
  static void LookOften(CertificateIntake* intake) {
    for (int i = 0; i < 4; ++i) intake->Look();
  }
  // What gRPC is shown, which always belongs together.
  static void ExpectShown(const CertificateIntake& intake,
                          const KeyPair& pair) {
    const std::string shown = Read(intake.identity_path());
    EXPECT_TRUE(absl::StrContains(shown, pair.cert));
    EXPECT_OK(CheckKeyBelongs(shown, shown));
  }

  FakeClock clock_;
  const CertificateAuthority authority_ = *CertificateAuthority::Create(
      "ca",
      {clock_.WallTime() - absl::Hours(9), clock_.WallTime() + absl::Hours(9)});
  TlsFiles files_;
  KeyPair first_;
  Lines lines_;
};

TEST_F(CertificateIntakeTest, TakesWhatIsThereAtOnce) {
  CertificateIntake intake(files_, &clock_);
  EXPECT_OK(intake.status());
  ExpectShown(intake, first_);
  EXPECT_EQ(Read(intake.ca_path()), authority_.pair().cert);
  LookOften(&intake);
  EXPECT_THAT(lines_.Take(), IsEmpty());
}

TEST_F(CertificateIntakeTest, TakesARenewalOnceItHasStayed) {
  CertificateIntake intake(files_, &clock_);
  const KeyPair next = Issue();
  WritePair(next);
  intake.Look();
  ExpectShown(intake, first_);
  intake.Look();
  ExpectShown(intake, next);
  LookOften(&intake);
  EXPECT_THAT(lines_.Take(),
              ElementsAre(AllOf(HasSubstr("certificates_renewed"),
                                HasSubstr(files_.cert))));
}

TEST_F(CertificateIntakeTest, KeepsWhatItHasIfFilesAreNotGood) {
  const std::string cert = first_.cert;
  const std::string chain = absl::StrCat(cert, authority_.pair().cert);
  const struct {
    std::string file;
    std::string text;
    std::string what;
  } cases[] = {
      {files_.cert, "", "is empty"},
      {files_.key, "", "is empty"},
      {files_.ca, "", "is empty"},
      {files_.cert, "garbage", "no certificate as PEM text"},
      {files_.key, "garbage", "no private key as PEM text"},
      {files_.ca, "garbage", "no certificate as PEM text"},
      {files_.cert, std::string(512, '\0') + cert, "zero bytes"},
      {files_.key, Issue().key, "not that of the certificate"},
      {files_.cert, Issue().cert, "not that of the certificate"},
      // Written up to the middle of the second certificate.
      {files_.cert, chain.substr(0, cert.size() + 200), "certificate 2"},
      {files_.cert, Issue(-absl::Hours(3)).cert, "expired"},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(absl::StrCat(bad.file, ": ", bad.what));
    CertificateIntake intake(files_, &clock_);
    const std::string good = Read(bad.file);
    Write(bad.file, bad.text);
    LookOften(&intake);
    EXPECT_OK(intake.status());
    ExpectShown(intake, first_);
    EXPECT_EQ(Read(intake.ca_path()), authority_.pair().cert);
    const std::string about =
        bad.what == "not that of the certificate" ? files_.key : bad.file;
    // Once, however often it looks.
    EXPECT_THAT(lines_.Take(),
                ElementsAre(AllOf(HasSubstr("certificates_not_taken"),
                                  HasSubstr(about), HasSubstr(bad.what))));
    // The same again is another change.
    Write(bad.file, bad.text);
    LookOften(&intake);
    EXPECT_EQ(lines_.Take().size(), 1u);
    Write(bad.file, good);
    LookOften(&intake);
    EXPECT_THAT(lines_.Take(), IsEmpty());
  }
}

TEST_F(CertificateIntakeTest, AChainThatEndsTooSoonIsNotTaken) {
  // Of an authority between, by its name, which another one has signed.
  const auto root = *CertificateAuthority::Create(
      "root",
      {clock_.WallTime() - absl::Hours(9), clock_.WallTime() + absl::Hours(9)});
  const std::string between =
      root.Issue({"ca",
                  "coxswain://job/a",
                  {},
                  {clock_.WallTime(), clock_.WallTime() + absl::Hours(2)}})
          ->cert;
  const std::string end = root.pair().cert;
  Write(files_.cert, absl::StrCat(first_.cert, between, end));
  CertificateIntake intake(files_, &clock_);
  ASSERT_OK(intake.status());
  KeyPair next = Issue();
  WritePair(next);
  LookOften(&intake);
  ExpectShown(intake, first_);
  EXPECT_THAT(lines_.Take(),
              ElementsAre(AllOf(HasSubstr("certificates_not_taken"),
                                HasSubstr(files_.cert),
                                HasSubstr("certificate of 'ca'"),
                                HasSubstr("is missing behind it"))));
  // Peers have the root.
  next.cert += between;
  WritePair(next);
  LookOften(&intake);
  ExpectShown(intake, next);
}

TEST_F(CertificateIntakeTest, TakesAGoodPairAfterABadOne) {
  CertificateIntake intake(files_, &clock_);
  const KeyPair next = Issue();
  Write(files_.cert, next.cert);
  LookOften(&intake);
  ExpectShown(intake, first_);
  Write(files_.key, next.key);
  LookOften(&intake);
  ExpectShown(intake, next);
  EXPECT_THAT(lines_.Take(), ElementsAre(HasSubstr("certificates_not_taken"),
                                         HasSubstr("certificates_renewed")));
}

TEST_F(CertificateIntakeTest, AFileThatIsGoneIsWaitedFor) {
  CertificateIntake intake(files_, &clock_);
  ASSERT_EQ(std::remove(files_.key.c_str()), 0);
  LookOften(&intake);
  ExpectShown(intake, first_);
  EXPECT_THAT(lines_.Take(), ElementsAre(HasSubstr("No such file")));
  const KeyPair next = Issue();
  WritePair(next);
  LookOften(&intake);
  ExpectShown(intake, next);
}

// As where this host's clock is a little late.
TEST_F(CertificateIntakeTest, TakesACertificateOnceItIsValid) {
  CertificateIntake intake(files_, &clock_);
  const KeyPair next = Issue(absl::Minutes(1));
  WritePair(next);
  LookOften(&intake);
  ExpectShown(intake, first_);
  EXPECT_THAT(lines_.Take(), ElementsAre(HasSubstr("valid only from")));
  clock_.Advance(absl::Minutes(2));
  intake.Look();
  ExpectShown(intake, next);
}

TEST_F(CertificateIntakeTest, BeginsWithoutAnyAndTakesTheFirstGoodOnes) {
  Write(files_.cert, "");
  CertificateIntake intake(files_, &clock_);
  EXPECT_THAT(intake.status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(files_.cert), HasSubstr("is empty"))));
  // Not even an empty file, for which gRPC would end the process.
  EXPECT_NE(access(intake.identity_path().c_str(), F_OK), -1);
  EXPECT_FALSE(std::ifstream(intake.identity_path()).is_open());
  Write(files_.cert, first_.cert);
  LookOften(&intake);
  EXPECT_OK(intake.status());
  ExpectShown(intake, first_);
}

// As haproxy wants it: all in one.
TEST_F(CertificateIntakeTest, OneFileMayHoldTheCertificateAndItsKey) {
  Write(files_.cert, absl::StrCat(first_.cert, first_.key));
  files_.key = files_.cert;
  CertificateIntake intake(files_, &clock_);
  EXPECT_OK(intake.status());
  ExpectShown(intake, first_);
}

TEST_F(CertificateIntakeTest, UsersOfTheSameFilesShareAWatch) {
  // By the system's clock, which gRPC follows.
  const absl::Time now = Clock::Real()->WallTime();
  const auto pair = authority_.Issue(
      {"worker", "coxswain://job/a", {}, {now, now + absl::Hours(1)}});
  WritePair(*pair);
  files_.ca.clear();
  const auto watch = CertificateWatch::Of(files_);
  EXPECT_OK(watch->status());
  EXPECT_EQ(CertificateWatch::Of(files_), watch);
  TlsFiles other = files_;
  other.key += ".other";
  EXPECT_NE(CertificateWatch::Of(other), watch);
}

}  // namespace
}  // namespace coxswain
