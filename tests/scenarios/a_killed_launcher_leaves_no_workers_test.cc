#include <csignal>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/scenarios/scenario.h"

namespace coxswain {
namespace {

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
                                      kPatience));
  }
  const std::map<int, pid_t> pids = PidsByRank(launcher->out());
  ASSERT_THAT(pids, SizeIs(3));

  launcher->Signal(SIGKILL);
  for (const auto& [rank, pid] : pids) {
    EXPECT_TRUE(WaitUntilGone(pid, kWorkersEnd)) << "rank " << rank;
  }
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kPatience));
  EXPECT_EQ(exit.signal, SIGKILL);
  EXPECT_THAT(StrayProcesses({coordinator.process().pid()}), IsEmpty());
  coordinator.Stop();
}

}  // namespace
}  // namespace coxswain
