#include "cli/launch/launcher.h"

#include <cctype>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "tests/support/process.h"

// Stories with a real launcher and real workers, which are shell scripts.

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr absl::Duration kSoon = absl::Seconds(20);
constexpr char kLauncher[] = "cli/launch/launch_for_test";
// Far beyond any test's end.
constexpr char kForever[] = "1h";

struct Graces {
  std::string exit = kForever;
  std::string stop = kForever;
  std::string prefix = "prefix";
};

std::unique_ptr<Process> LaunchWorkers(int nproc, const std::string& script,
                                       const Graces& graces = {}) {
  auto process =
      Process::Start({{kLauncher, absl::StrCat(nproc), graces.exit, graces.stop,
                       graces.prefix, "/bin/sh", "-c", script},
                      {}});
  EXPECT_OK(process);
  return std::move(process).value();
}

// The numbers that follow `label` in the output, such as pids.
std::vector<pid_t> NumbersAfter(absl::string_view label,
                                const std::string& text) {
  std::vector<pid_t> numbers;
  for (const std::string& part :
       std::vector<std::string>(absl::StrSplit(text, label))) {
    if (!part.empty() && std::isdigit(part[0])) {
      numbers.push_back(std::atoi(part.c_str()));
    }
  }
  return numbers;
}

TEST(LauncherTest, AllSucceed) {
  auto launcher = LaunchWorkers(3, "echo hello");
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 0);
  EXPECT_THAT(launcher->out(), AllOf(HasSubstr("[here/0] hello\n"),
                                     HasSubstr("[here/1] hello\n"),
                                     HasSubstr("[here/2] hello\n")));
  EXPECT_THAT(launcher->err(),
              AllOf(HasSubstr("reported 0 0"), HasSubstr("reported 2 0"),
                    Not(HasSubstr("failure"))));
}

TEST(LauncherTest, WorkersGetTheirEnvironmentAndNoInput) {
  auto launcher = LaunchWorkers(
      1,
      "echo $COXSWAIN_LOCAL_RANK/$COXSWAIN_WORLD_SIZE $COXSWAIN_JOB; cat; "
      "test \"$COXSWAIN_INCARNATION\" != 0");
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 0);
  EXPECT_EQ(launcher->out(), "[here/0] 0/1 test\n");
}

TEST(LauncherTest, OutputAndErrorsAreKeptApartAndNothingIsLost) {
  auto launcher =
      LaunchWorkers(2, "echo to-err >&2; seq 1 20000; printf end-without-line");
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 0);
  EXPECT_THAT(launcher->err(), HasSubstr("[here/1] to-err\n"));
  EXPECT_THAT(launcher->out(),
              AllOf(HasSubstr("[here/0] 20000\n"), Not(HasSubstr("to-err")),
                    HasSubstr("[here/0] end-without-line\n"),
                    HasSubstr("[here/1] end-without-line\n")));
  const std::vector<std::string> lines = absl::StrSplit(launcher->out(), '\n');
  EXPECT_THAT(lines, SizeIs(2 * 20001 + 1));
}

TEST(LauncherTest, WithoutPrefixBytesPassAsTheyCome) {
  auto launcher =
      LaunchWorkers(1, "printf '50%%\\r'", {kForever, kForever, "no"});
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 0);
  EXPECT_EQ(launcher->out(), "50%\r");
}

TEST(LauncherTest, TheFirstFailureIsReturnedAndNamed) {
  // The second worker fails only once it is told to, after the first.
  auto launcher =
      LaunchWorkers(2,
                    "if [ $COXSWAIN_LOCAL_RANK = 1 ]; then exit 7; fi; "
                    "trap 'exit 9' TERM; while :; do sleep 1000 & wait; done",
                    {"0s", kForever});
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 7);
  EXPECT_THAT(launcher->err(),
              AllOf(HasSubstr("coxswain: first failure: worker here/1 (pid "),
                    HasSubstr("exited with code 7\n"),
                    HasSubstr("sending SIGTERM to worker here/0"),
                    HasSubstr("reported 1 7")));
}

TEST(LauncherTest, AWorkerThatIsKilledEndsTheJobAndNothingIsLeft) {
  auto launcher = LaunchWorkers(
      3, "sleep 1000 & echo worker=$$ child=$!.; wait", {"0s", "0s"});
  ASSERT_OK(launcher->WaitForStdout("[here/0] worker=", kSoon));
  ASSERT_OK(launcher->WaitForStdout("[here/1] worker=", kSoon));
  ASSERT_OK(launcher->WaitForStdout("[here/2] worker=", kSoon));
  const std::vector<pid_t> workers = NumbersAfter("worker=", launcher->out());
  const std::vector<pid_t> children = NumbersAfter("child=", launcher->out());
  ASSERT_THAT(workers, SizeIs(3));
  ASSERT_THAT(children, SizeIs(3));

  kill(workers[1], SIGKILL);
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 128 + SIGKILL);
  EXPECT_THAT(launcher->err(),
              HasSubstr(absl::StrCat("(pid ", workers[1],
                                     ") was killed by signal 9 (SIGKILL)")));
  for (const pid_t pid : workers) EXPECT_TRUE(WaitUntilGone(pid, kSoon));
  for (const pid_t pid : children) EXPECT_TRUE(WaitUntilGone(pid, kSoon));
}

TEST(LauncherTest, SignalsAreHandedOn) {
  auto launcher = LaunchWorkers(
      1,
      "trap 'echo usr1' USR1; trap 'echo usr2' USR2; trap 'echo hup' HUP; "
      "trap 'echo term; exit 5' TERM; echo ready; "
      "while :; do sleep 1000 & wait; done");
  ASSERT_OK(launcher->WaitForStdout("ready", kSoon));
  launcher->Signal(SIGUSR1);
  ASSERT_OK(launcher->WaitForStdout("usr1", kSoon));
  launcher->Signal(SIGUSR2);
  ASSERT_OK(launcher->WaitForStdout("usr2", kSoon));
  launcher->Signal(SIGHUP);
  ASSERT_OK(launcher->WaitForStdout("hup", kSoon));
  launcher->Signal(SIGTERM);
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 5);
  EXPECT_THAT(launcher->out(), HasSubstr("term"));
}

TEST(LauncherTest, TheSecondInterruptKills) {
  auto launcher = LaunchWorkers(
      1,
      "trap 'echo int' INT; echo ready; while :; do sleep 1000 & wait; done");
  ASSERT_OK(launcher->WaitForStdout("ready", kSoon));
  launcher->Signal(SIGINT);
  ASSERT_OK(launcher->WaitForStdout("int", kSoon));
  launcher->Signal(SIGINT);
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 128 + SIGKILL);
  EXPECT_THAT(launcher->err(), HasSubstr("interrupted twice"));
}

TEST(LauncherTest, AStopThatIsNotFollowedEndsInKill) {
  auto launcher = LaunchWorkers(
      1, "trap '' TERM; echo ready; while :; do sleep 1000 & wait; done",
      {kForever, "10ms"});
  ASSERT_OK(launcher->WaitForStdout("ready", kSoon));
  launcher->Signal(SIGTERM);
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 128 + SIGKILL);
}

TEST(LauncherTest, NoWorkerOutlivesAKilledLauncher) {
  auto launcher =
      LaunchWorkers(2, "echo worker=$$.; while :; do sleep 1000 & wait; done");
  ASSERT_OK(launcher->WaitForStdout("[here/0] worker=", kSoon));
  ASSERT_OK(launcher->WaitForStdout("[here/1] worker=", kSoon));
  const std::vector<pid_t> workers = NumbersAfter("worker=", launcher->out());
  ASSERT_THAT(workers, SizeIs(2));
  launcher->Signal(SIGKILL);
  for (const pid_t pid : workers) EXPECT_TRUE(WaitUntilGone(pid, kSoon));
}

TEST(LauncherTest, AReaderThatStandsStillDoesNotHoldUpTheEnd) {
  // Nobody reads the launcher's output while the script fills it.
  auto launcher =
      LaunchWorkers(2,
                    "if [ $COXSWAIN_LOCAL_RANK = 1 ]; then exit 3; fi; "
                    "head -c 10000000 /dev/zero | tr '\\0' '\\n'; exit 4",
                    {"0s", "0s"});
  EXPECT_TRUE(WaitUntilGone(launcher->pid(), kSoon));
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 3);
}

TEST(LauncherTest, AProgramThatIsMissingStartsNothing) {
  ASSERT_OK_AND_ASSIGN(
      auto launcher,
      Process::Start(
          {{kLauncher, "2", "0s", "0s", "prefix", "/nonexistent/train"}, {}}));
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 125);
  EXPECT_THAT(launcher->err(),
              AllOf(HasSubstr("NOT_FOUND"), HasSubstr("/nonexistent/train")));
}

}  // namespace
}  // namespace coxswain
