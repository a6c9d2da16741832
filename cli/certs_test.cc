#include "cli/commands.h"

#include <sys/stat.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/certificates.h"
#include "base/status_matchers.h"
#include "base/tls_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

class CertsTest : public testing::Test {
 protected:
  CertsTest() {
    options_.dir = absl::StrCat(
        testing::TempDir(), "/certs-",
        testing::UnitTest::GetInstance()->current_test_info()->name());
    options_.hosts = {"head.example"};
    options_.jobs = {"a"};
  }

  std::string Path(const std::string& file) const {
    return absl::StrCat(options_.dir, "/", file);
  }
  CertificateFacts Facts(const std::string& file) const {
    return *ReadCertificate(*WatchedFile(Path(file)).Read());
  }
  TlsFiles Files(const std::string& name) const {
    return {Path(name + ".crt"), Path(name + ".key"), Path("ca.crt")};
  }

  CertsOptions options_;
};

TEST_F(CertsTest, InitMakesWhatAHeadNodeNeeds) {
  ASSERT_OK_AND_ASSIGN(const std::string text, RunCerts(options_, kNow));
  EXPECT_THAT(text, AllOf(HasSubstr("coxswain serve --listen"),
                          HasSubstr("coxswain run --coordinator head.example"),
                          HasSubstr("--job a"), HasSubstr(Path("ca.crt"))));
  EXPECT_THAT(Facts("coordinator.crt").uris, ElementsAre(kCoordinatorUri));
  EXPECT_THAT(Facts("operator.crt").uris, ElementsAre(kOperatorUri));
  EXPECT_THAT(Facts("job-a.crt").uris, ElementsAre("coxswain://job/a"));
  for (const char* const name : {"coordinator", "operator", "job-a"}) {
    EXPECT_OK(CheckTlsFiles(Files(name), kNow)) << name;
  }
}

TEST_F(CertsTest, KeysAreForTheirOwnerOnly) {
  ASSERT_OK(RunCerts(options_, kNow).status());
  for (const char* const name : {"ca", "coordinator", "operator", "job-a"}) {
    struct stat status = {};
    ASSERT_EQ(stat(Path(absl::StrCat(name, ".key")).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600) << name;
  }
}

TEST_F(CertsTest, NothingIsOverwritten) {
  ASSERT_OK(RunCerts(options_, kNow).status());
  const std::string before = *WatchedFile(Path("job-a.key")).Read();
  EXPECT_THAT(RunCerts(options_, kNow),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("ca.crt")));
  options_.action = CertsOptions::Action::kAdd;
  EXPECT_THAT(
      RunCerts(options_, kNow),
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("job-a.crt")));
  EXPECT_EQ(*WatchedFile(Path("job-a.key")).Read(), before);
}

TEST_F(CertsTest, AFolderThatIsOpenToOthersIsNotTaken) {
  ASSERT_EQ(mkdir(options_.dir.c_str(), 0700), 0);
  ASSERT_EQ(chmod(options_.dir.c_str(), 0777), 0);
  EXPECT_THAT(RunCerts(options_, kNow).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(options_.dir), HasSubstr("chmod"))));
  ASSERT_EQ(chmod(options_.dir.c_str(), 0755), 0);
  EXPECT_OK(RunCerts(options_, kNow).status());
}

TEST_F(CertsTest, AddSignsWithTheSameAuthority) {
  ASSERT_OK(RunCerts(options_, kNow).status());
  options_.action = CertsOptions::Action::kAdd;
  options_.jobs = {"b"};
  ASSERT_OK_AND_ASSIGN(const std::string text, RunCerts(options_, kNow));
  EXPECT_THAT(text, HasSubstr("--job b"));
  EXPECT_OK(CheckTlsFiles(Files("job-b"), kNow));
  options_.dir += "-elsewhere";
  EXPECT_THAT(RunCerts(options_, kNow),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("ca.crt")));
}

TEST_F(CertsTest, ShowMarksWhatHasExpired) {
  ASSERT_OK(RunCerts(options_, kNow).status());
  options_.action = CertsOptions::Action::kShow;
  EXPECT_THAT(*RunCerts(options_, kNow),
              AllOf(HasSubstr("job-a.crt  coxswain://job/a  until 20"),
                    HasSubstr("ca.crt  (an authority)")));
  EXPECT_THAT(*RunCerts(options_, kNow + absl::Hours(24 * 366)),
              AllOf(HasSubstr("job-a.crt  coxswain://job/a  EXPIRED 20"),
                    HasSubstr("ca.crt  (an authority)  until 20")));
}

}  // namespace
}  // namespace coxswain
