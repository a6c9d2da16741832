#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/scenarios/scenario.h"

namespace coxswain {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(LateCoordinatorTest, WorkersSayThatTheyWaitAndThenTrain) {
  const std::string address = absl::StrCat("127.0.0.1:", UnusedPort());
  auto launcher = Start(
      Launcher({"--nproc", "2", "--job", "rows", "--coordinator", address},
               {"--steps", "5", "--digest"}));
  // The first notice comes after 10 s.
  const std::string notice = absl::StrCat("the coordinator at ", address, ": ");
  for (const char* slot : {"/0] ", "/1] "}) {
    ASSERT_OK(launcher->WaitForStderr(slot, kPatience));
  }
  ASSERT_OK(launcher->WaitForStderr(notice, kPatience));
  EXPECT_THAT(launcher->out(), Not(HasSubstr("rank")));

  ServedCoordinator coordinator(address);
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kPatience));
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
