#include <csignal>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "tests/system/scenario.h"

namespace coxswain::worker_killed_in_mid_training_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// How long the others may take to end after a worker was killed.
constexpr absl::Duration kSurvivorsEnd = absl::Seconds(5);
constexpr char kForEver[] = "1000000000";

absl::Time Now() { return Clock::Real()->Now(); }

void RecordSeconds(const std::string& what, absl::Duration duration) {
  testing::Test::RecordProperty(what,
                                absl::StrCat(absl::ToDoubleSeconds(duration)));
  std::printf("%s: %.3f s\n", what.c_str(), absl::ToDoubleSeconds(duration));
}

// Returns "rank 1 (stroke/0 on HOST, incarnation ...) was lost", where the host
// is left out if the node is called the same.
std::string Loss(int rank, const std::string& worker) {
  return absl::StrCat("rank ", rank, " (", worker, ", ");
}

class KilledWorkerTest : public testing::TestWithParam<const char*> {};

TEST_P(KilledWorkerTest, TheOthersEndAndNameItAndNothingIsLeft) {
  auto launcher =
      Start(Launcher({"--nproc", "3"}, {"--hook", GetParam(), "--steps",
                                        kForEver, "--report-every", "10"}));
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_OK(launcher->WaitForStdout(absl::StrCat("rank ", rank, " step 20\n"),
                                      kTimeout));
  }
  std::map<int, pid_t> pids = PidsByRank(launcher->out());
  ASSERT_THAT(pids, SizeIs(3));

  const absl::Time killed = Now();
  ASSERT_EQ(kill(pids[1], SIGKILL), 0);
  EXPECT_TRUE(WaitUntilEnded(pids[0], kTimeout));
  EXPECT_TRUE(WaitUntilEnded(pids[2], kTimeout));
  const absl::Duration took = Now() - killed;
  EXPECT_LT(took, kSurvivorsEnd);
  RecordSeconds("survivors_ended_after", took);

  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kTimeout));
  EXPECT_EQ(exit.Status(), 128 + SIGKILL);
  const std::string& err = launcher->err();
  const auto errors = LinesWith(err, "toy_worker: ");
  EXPECT_THAT(errors, SizeIs(2)) << err;
  EXPECT_THAT(errors, Each(AllOf(HasSubstr(Loss(1, ThisHost() + "/1")),
                                 HasSubstr("was lost: killed by signal 9"))));
  EXPECT_THAT(err, HasSubstr(absl::StrCat(
                       "first failure: worker ", ThisHost(), "/1 (pid ",
                       pids[1], ") was killed by signal 9 (SIGKILL)")));
  EXPECT_THAT(
      err,
      AllOf(HasSubstr(absl::StrCat("coxswain: cause: worker ", ThisHost(),
                                   "/1 (pid ", pids[1],
                                   ") was killed by "
                                   "signal 9 (SIGKILL)\n")),
            HasSubstr(absl::StrCat("coxswain: consequence: worker ", ThisHost(),
                                   "/0 (pid ", pids[0], ") exited with ")),
            HasSubstr(absl::StrCat("coxswain: consequence: worker ", ThisHost(),
                                   "/2 "))));
  EXPECT_THAT(err, Not(HasSubstr("sending SIG")))
      << "the others had to be stopped";
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Hooks, KilledWorkerTest,
                         testing::Values("allreduce",
                                         "powersgd(rank=2,start_step=2)"),
                         [](const auto& hook) {
                           return std::string(hook.param).substr(0, 8);
                         });

TEST(WorkerKilledInMidTrainingTest,
     ARankThatWaitsInACollectiveOnAnotherHostEnds) {
  ServedCoordinator coordinator;
  Latch latch;
  const auto options = [&](const std::string& node) {
    return std::vector<std::string>{
        "--nnodes", "2",    "--node",        node,
        "--job",    "rows", "--coordinator", coordinator.address()};
  };
  // The victim stops before step 5, so that the other one waits for it within
  // the step's all-reduce.
  auto waiting = Start(Launcher(options("bow"), {"--steps", kForEver}));
  auto victim =
      Start(Launcher(options("stroke"), {"--steps", kForEver, "--wait-at", "5",
                                         "--latch", latch.path()}));
  ASSERT_OK(victim->WaitForStdout(" at step 5\n", kTimeout));
  ASSERT_OK(waiting->WaitForStdout("rank 0 step 5\n", kTimeout));
  const std::map<int, pid_t> pids = PidsByRank(victim->out());
  ASSERT_THAT(pids, SizeIs(1));

  const absl::Time killed = Now();
  ASSERT_EQ(kill(pids.at(1), SIGKILL), 0);
  ASSERT_OK_AND_ASSIGN(Process::Exit survivor, waiting->Wait(kTimeout));
  const absl::Duration took = Now() - killed;
  EXPECT_LT(took, kSurvivorsEnd);
  RecordSeconds("other_host_ended_after", took);
  EXPECT_EQ(survivor.Status(), 1) << waiting->err();
  EXPECT_THAT(
      LinesWith(waiting->err(), "toy_worker: "),
      testing::ElementsAre(HasSubstr(Loss(1, "stroke/0 on " + ThisHost()))));
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, victim->Wait(kTimeout));
  EXPECT_EQ(exit.Status(), 128 + SIGKILL);

  // The coordinator has a use for the name again.
  auto again = Start(Launcher(
      {"--nproc", "2", "--job", "rows", "--coordinator", coordinator.address()},
      {"--steps", "3"}));
  ASSERT_OK_AND_ASSIGN(exit, again->Wait(kTimeout));
  EXPECT_EQ(exit.Status(), 0) << again->err();
  coordinator.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

}  // namespace
}  // namespace coxswain::worker_killed_in_mid_training_test
