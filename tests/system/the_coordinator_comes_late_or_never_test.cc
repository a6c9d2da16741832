#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "tests/support/loopback.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// Starts a job of two with 2 s to join, and expects both to time out, with this
// advice.
void ExpectClearError(const std::string& address, const std::string& advice) {
  const absl::Time begun = Clock::Real()->Now();
  auto launcher =
      Start(Launcher({"--nproc", "2", "--job", "rows", "--coordinator", address,
                      "--join-timeout", "2s", "--exit-grace", "30s"},
                     {}));
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kTimeout));
  EXPECT_EQ(exit.Status(), 1);
  const absl::Duration took = Clock::Real()->Now() - begun;
  std::printf("gave up after %.3f s\n", absl::ToDoubleSeconds(took));
  EXPECT_GE(took, absl::Seconds(2));
  EXPECT_LT(took, absl::Seconds(20));
  const auto errors = LinesWith(launcher->err(), "toy_worker: ");
  EXPECT_THAT(errors, SizeIs(2)) << launcher->err();
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("could not join job 'rows' within 2s"),
                         HasSubstr(absl::StrCat("the coordinator at ", address,
                                                " never answered")),
                         HasSubstr(advice))));
  EXPECT_THAT(launcher->err(), HasSubstr("coxswain: first failure: worker "));
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

TEST(CoordinatorNeverStartsTest, NoServerListens) {
  ExpectClearError(absl::StrCat("127.0.0.1:", UnusedPort()),
                   "Start it with `coxswain serve` or check --coordinator");
}

// A port that takes connections and never answers, as a stopped process does.
TEST(CoordinatorNeverStartsTest, SomethingSilentListens) {
  int port = 0;
  const UniqueFd fd = ListenOnLoopback(&port);
  ExpectClearError(absl::StrCat("127.0.0.1:", port),
                   "check the port in --coordinator");
}

TEST(LateCoordinatorTest, WorkersReportThatTheyWaitAndThenTrain) {
  const std::string address = absl::StrCat("127.0.0.1:", UnusedPort());
  auto launcher = Start(
      Launcher({"--nproc", "2", "--job", "rows", "--coordinator", address},
               {"--steps", "5", "--digest"}));
  // The first notice comes after 10 s.
  const std::string notice = absl::StrCat("the coordinator at ", address, ": ");
  for (const char* slot : {"/0] ", "/1] "}) {
    ASSERT_OK(launcher->WaitForStderr(slot, kTimeout));
  }
  ASSERT_OK(launcher->WaitForStderr(notice, kTimeout));
  EXPECT_THAT(launcher->out(), Not(HasSubstr("rank")));

  ServedCoordinator coordinator(address);
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kTimeout));
  EXPECT_EQ(exit.Status(), 0) << launcher->err();
  EXPECT_THAT(launcher->out(), HasSubstr("rank 0 done\n"));
  EXPECT_THAT(launcher->out(), HasSubstr("rank 1 done\n"));
  for (const char* slot : {"/0] ", "/1] "}) {
    EXPECT_THAT(LinesWith(launcher->err(), notice), Contains(HasSubstr(slot)));
  }
  coordinator.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

}  // namespace
}  // namespace coxswain
