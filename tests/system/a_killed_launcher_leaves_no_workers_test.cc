#include <csignal>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr absl::Duration kWorkersEnd = absl::Seconds(5);

TEST(LauncherKilledTest, ItsWorkersEndWithIt) {
  ServedCoordinator coordinator;
  auto launcher = Start(Launcher(
      {"--nproc", "3", "--job", "rows", "--coordinator", coordinator.address()},
      {"--steps", "1000000000", "--report-every", "10"}));
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_OK(launcher->WaitForStdout(absl::StrCat("rank ", rank, " step 20\n"),
                                      kTimeout));
  }
  const std::map<int, pid_t> pids = PidsByRank(launcher->out());
  ASSERT_THAT(pids, SizeIs(3));

  launcher->Signal(SIGKILL);
  for (const auto& [rank, pid] : pids) {
    EXPECT_TRUE(WaitUntilEnded(pid, kWorkersEnd)) << "rank " << rank;
  }
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kTimeout));
  EXPECT_EQ(exit.signal, SIGKILL);
  EXPECT_THAT(StrayProcesses({coordinator.process().pid()}), IsEmpty());
  coordinator.Stop();
}

// No launcher reports the loss: the others only see a broken connection.
TEST(LauncherKilledTest, TheWorkersOfOtherLaunchersEndAsWell) {
  ServedCoordinator coordinator;
  const auto start = [&](const std::string& node) {
    return Start(Launcher({"--nnodes", "2", "--node", node, "--job", "rows",
                           "--coordinator", coordinator.address()},
                          {"--steps", "1000000000", "--report-every", "10"}));
  };
  auto bow = start("bow");
  auto stroke = start("stroke");
  ASSERT_OK(bow->WaitForStdout("rank 0 step 20\n", kTimeout));
  ASSERT_OK(stroke->WaitForStdout("rank 1 step 20\n", kTimeout));

  stroke->Signal(SIGKILL);
  const absl::Time killed = Clock::Real()->Now();
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, bow->Wait(kTimeout));
  std::printf("the other one ended after %.3f s\n",
              absl::ToDoubleSeconds(Clock::Real()->Now() - killed));
  EXPECT_EQ(exit.Status(), 1) << bow->err();
  // Its connection to rank 1 breaks; should it miss that, the coordinator's
  // word that rank 1 is lost ends the wait.
  EXPECT_THAT(LinesWith(bow->err(), "toy_worker: "),
              ElementsAre(HasSubstr("rank 1")));
  ASSERT_OK(stroke->Wait(kTimeout));
  EXPECT_THAT(StrayProcesses({coordinator.process().pid()}), IsEmpty());
  coordinator.Stop();
}

}  // namespace
}  // namespace coxswain
