#include "cli/launch/process_table.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

LaunchGraces Graces() { return {absl::Seconds(5), absl::Seconds(10)}; }

WorkerExit Exit(int slot, int code, int signal = 0) {
  return {slot, 100 + slot, code, signal};
}

TEST(ProcessTableTest, SuccessOfAllIsSuccess) {
  ProcessTable table(2, Graces());
  table.Exited(kStart, Exit(1, 0));
  EXPECT_FALSE(table.AllEnded());
  EXPECT_EQ(table.Decide(kStart + absl::Hours(1)).signal, 0);
  EXPECT_EQ(table.Decide(kStart).next, absl::InfiniteFuture());
  table.Exited(kStart, Exit(0, 0));
  EXPECT_TRUE(table.AllEnded());
  EXPECT_EQ(table.ExitStatus(), 0);
  EXPECT_FALSE(table.first_failure().has_value());
}

TEST(ProcessTableTest, TheFirstFailureDecidesTheExitStatus) {
  ProcessTable table(3, Graces());
  table.Exited(kStart, Exit(0, 0));
  table.Exited(kStart, Exit(2, 0, SIGKILL));
  table.Exited(kStart, Exit(1, 7));
  EXPECT_EQ(table.ExitStatus(), 128 + SIGKILL);
  EXPECT_EQ(table.first_failure()->slot, 2);
  EXPECT_EQ(table.first_failure()->ToString(),
            "was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(Exit(1, 7).ToString(), "exited with code 7");
}

TEST(ProcessTableTest, SurvivorsOfAFailureGetTheirGraceThenTermThenKill) {
  ProcessTable table(2, Graces());
  table.Exited(kStart, Exit(0, 1));
  LaunchDecision decision = table.Decide(kStart + absl::Seconds(4));
  EXPECT_EQ(decision.signal, 0);
  EXPECT_EQ(decision.next, kStart + absl::Seconds(5));

  decision = table.Decide(kStart + absl::Seconds(5));
  EXPECT_EQ(decision.signal, SIGTERM);
  EXPECT_THAT(decision.reason, HasSubstr("5s after another worker failed"));
  EXPECT_EQ(decision.next, kStart + absl::Seconds(15));
  EXPECT_EQ(table.Decide(kStart + absl::Seconds(14)).signal, 0);

  decision = table.Decide(kStart + absl::Seconds(15));
  EXPECT_EQ(decision.signal, SIGKILL);
  EXPECT_EQ(decision.next, absl::InfiniteFuture());
  EXPECT_EQ(table.Decide(kStart + absl::Hours(1)).signal, 0);
}

TEST(ProcessTableTest, SurvivorsThatEndInTimeAreLeftAlone) {
  ProcessTable table(2, Graces());
  table.Exited(kStart, Exit(0, 1));
  table.Exited(kStart + absl::Seconds(1), Exit(1, 1));
  EXPECT_EQ(table.Decide(kStart + absl::Hours(1)).signal, 0);
}

TEST(ProcessTableTest, AStopThatIsNotFollowedEndsInKill) {
  ProcessTable table(1, Graces());
  table.StopRequested(kStart, SIGTERM);
  EXPECT_EQ(table.Decide(kStart).signal, 0);
  EXPECT_EQ(table.Decide(kStart).next, kStart + absl::Seconds(10));
  // Asking again does not extend the grace.
  table.StopRequested(kStart + absl::Seconds(9), SIGTERM);
  EXPECT_EQ(table.Decide(kStart + absl::Seconds(10)).signal, SIGKILL);
}

TEST(ProcessTableTest, TheSecondInterruptKillsAtOnce) {
  ProcessTable table(1, Graces());
  table.StopRequested(kStart, SIGINT);
  EXPECT_EQ(table.Decide(kStart).signal, 0);
  table.StopRequested(kStart + absl::Seconds(1), SIGINT);
  const LaunchDecision decision = table.Decide(kStart + absl::Seconds(1));
  EXPECT_EQ(decision.signal, SIGKILL);
  EXPECT_EQ(decision.reason, "interrupted twice");
}

}  // namespace
}  // namespace coxswain
