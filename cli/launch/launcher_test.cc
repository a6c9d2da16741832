#include "cli/launch/launcher.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <csignal>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "tests/support/process.h"

// Scenarios with a real launcher and real workers, which are shell scripts.

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr absl::Duration kSoon = absl::Seconds(20);
constexpr char kLauncher[] = "cli/launch/launch_for_test";
constexpr char kCoxswain[] = "cli/coxswain";
// Far beyond any test's end.
constexpr char kForever[] = "1h";

struct Graces {
  std::string exit = kForever;
  std::string stop = kForever;
  std::string prefix = "prefix";
};

std::unique_ptr<Process> LaunchWorkers(const std::string& nproc,
                                       const std::string& script,
                                       const Graces& graces = {}) {
  auto process = Process::Start({{kLauncher, nproc, graces.exit, graces.stop,
                                  graces.prefix, "/bin/sh", "-c", script},
                                 {}});
  EXPECT_OK(process);
  return std::move(process).value();
}
std::unique_ptr<Process> LaunchWorkers(int nproc, const std::string& script,
                                       const Graces& graces = {}) {
  return LaunchWorkers(absl::StrCat(nproc), script, graces);
}

// Returns the numbers that follow `label` in the output, such as pids.
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
  // The second worker fails only once it gets SIGTERM, after the first.
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
  for (const pid_t pid : workers) EXPECT_TRUE(WaitUntilEnded(pid, kSoon));
  for (const pid_t pid : children) EXPECT_TRUE(WaitUntilEnded(pid, kSoon));
}

TEST(LauncherTest, SignalsAreForwarded) {
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
  for (const pid_t pid : workers) EXPECT_TRUE(WaitUntilEnded(pid, kSoon));
}

// Holds a worker until the test opens it.
class Signpost {
 public:
  Signpost() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    EXPECT_EQ(mkfifo(path().c_str(), 0600), 0);
    fd_ = open(path().c_str(), O_RDWR | O_CLOEXEC);
  }
  ~Signpost() { Open(); }
  std::string path() const { return folder_ + "/signpost"; }
  // Releases those that read, now and later.
  void Open() {
    unlink(path().c_str());  // first: no reader opens a pipe without a writer
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  std::string folder_ = testing::TempDir() + "/launcher_test-XXXXXX";
  int fd_ = -1;
};

// A worker that leaves orphans and exits with code 5.
class OrphansScenario {
 public:
  std::string Script() const {
    return absl::StrCat(
        // The pid is that of the /proc of this machine, in all namespaces.
        "for i in 1 2 3 4 5 6; do (sh -c 'read pid rest < /proc/self/stat; "
        "echo orphan $0 pid=$pid.; exec cat ",
        orphans_end_.path(), " 2> /dev/null' $i &); done; echo all left; cat ",
        worker_goes_on_.path(), " 2> /dev/null; echo worker went on; cat ",
        worker_ends_.path(), " 2> /dev/null; exit 5");
  }

  // Fails if an orphan is left as a zombie, or the worker's exit code is lost.
  void Run(Process* launcher) {
    ASSERT_OK(launcher->WaitForStdout("all left", kSoon)) << launcher->err();
    for (const int i : {1, 2, 3, 4, 5, 6}) {
      ASSERT_OK(launcher->WaitForStdout(absl::StrCat("orphan ", i), kSoon));
    }
    const auto orphans = NumbersAfter("pid=", launcher->out());
    ASSERT_THAT(orphans, SizeIs(6));
    for (const pid_t pid : orphans) ASSERT_EQ(kill(pid, 0), 0);
    orphans_end_.Open();
    for (const pid_t pid : orphans) EXPECT_TRUE(WaitUntilEnded(pid, kSoon));
    // What the worker writes from here on is copied only by a launcher that has
    // collected them.
    worker_goes_on_.Open();
    ASSERT_OK(launcher->WaitForStdout("worker went on", kSoon));
    for (const pid_t pid : orphans) {
      EXPECT_EQ(kill(pid, 0), -1) << "process " << pid << " is a zombie";
    }
    worker_ends_.Open();
    ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
    EXPECT_EQ(exit.Status(), 5) << launcher->err();
  }

 private:
  Signpost orphans_end_;
  Signpost worker_goes_on_;
  Signpost worker_ends_;
};

TEST(LauncherTest, OrphansAreCollectedWhileTheirWorkerRuns) {
  OrphansScenario scenario;
  auto launcher = LaunchWorkers(1, scenario.Script());
  scenario.Run(launcher.get());
}

// Returns the first of these commands that works here; empty if none does.
std::vector<std::string> NewPidNamespace() {
  const std::vector<std::string> as_root = {"unshare", "--pid", "--fork",
                                            "--kill-child=SIGKILL"};
  std::vector<std::string> as_user = as_root;
  as_user.push_back("--map-root-user");
  for (const std::vector<std::string>& command : {as_root, as_user}) {
    std::vector<std::string> attempt = command;
    attempt.push_back("true");
    const auto process = Process::Start({attempt, {}});
    if (!process.ok()) continue;
    const auto exit = (*process)->Wait(kSoon);
    if (exit.ok() && exit->Status() == 0) return command;
  }
  return {};
}

TEST(LauncherTest, TheEntryPointOfAContainerCollectsOrphans) {
  std::vector<std::string> command = NewPidNamespace();
  if (command.empty()) GTEST_SKIP() << "may not make a PID namespace here";
  OrphansScenario scenario;
  command.insert(command.end(), {kCoxswain, "run", "--node", "here", "--",
                                 "/bin/sh", "-c", scenario.Script()});
  // A search for leaks would look up this process's number in a /proc of
  // another namespace.
  ASSERT_OK_AND_ASSIGN(
      auto launcher,
      Process::Start({command, {{"ASAN_OPTIONS", "detect_leaks=0"}}}));
  scenario.Run(launcher.get());
}

TEST(LauncherTest, OrphansDoNotCostTheExitStatusOfAWorker) {
  // Orphans end before, with and after their workers.
  auto launcher = LaunchWorkers(
      "4:3",
      "i=0; while [ $i -lt 50 ]; do (true &); i=$((i + 1)); done; "
      "(sleep 0 &); exit 7");
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 7);
  for (int slot = 0; slot < 4; ++slot) {
    const std::vector<std::string> ends =
        absl::StrSplit(launcher->err(), absl::StrCat("reported ", slot, " 7 "));
    EXPECT_THAT(ends, SizeIs(1 + 4)) << launcher->err();
  }
}

TEST(LauncherTest, ACallerThatIgnoresTheEndOfChildrenChangesNothing) {
  // Of Debian's shells only bash passes this on to its children.
  ASSERT_OK_AND_ASSIGN(
      auto launcher,
      Process::Start({{"/bin/bash", "-c",
                       absl::StrCat("trap '' CHLD; exec ", kLauncher,
                                    " 1 1h 1h prefix /bin/sh -c 'exit 6'")},
                      {}}));
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 6) << launcher->err();
}

TEST(LauncherTest, AnElasticJobGoesOnWithoutAWorker) {
  Signpost go;
  auto launcher = LaunchWorkers(
      "3:0",
      absl::StrCat("echo worker=$$.; cat ", go.path(), " 2>/dev/null; exit 0"),
      {"0s", "0s"});
  for (const char* slot : {"0", "1", "2"}) {
    ASSERT_OK(launcher->WaitForStdout(absl::StrCat("[here/", slot, "] worker="),
                                      kSoon));
  }
  const std::vector<pid_t> workers = NumbersAfter("worker=", launcher->out());
  ASSERT_THAT(workers, SizeIs(3));
  kill(workers[1], SIGKILL);
  ASSERT_OK(launcher->WaitForStderr("is not started again", kSoon));
  EXPECT_THAT(launcher->err(), HasSubstr(absl::StrCat("(pid ", workers[1])));
  EXPECT_EQ(kill(workers[0], 0), 0) << "the others are left alone";
  EXPECT_EQ(kill(workers[2], 0), 0);
  go.Open();
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 0);
  EXPECT_THAT(launcher->err(),
              AllOf(HasSubstr("the job went on without worker here/"),
                    Not(HasSubstr("sending SIG"))));
}

TEST(LauncherTest, AWorkerThatFailsIsStartedAgainAsANewIncarnation) {
  // The second worker fails until it finds the file of its second life; the
  // first waits for it.
  Signpost go;
  const std::string lives = go.path() + ".lives";
  auto launcher = LaunchWorkers(
      "2:3",
      absl::StrCat("if [ $COXSWAIN_LOCAL_RANK = 0 ]; then cat ", go.path(),
                   " 2>/dev/null; exit 0; fi; echo life of "
                   "$COXSWAIN_INCARNATION; printf x >>",
                   lives, "; test $(cat ", lives,
                   ") = xxx || exit 5; echo end; exit 0"),
      {"0s", "0s"});
  ASSERT_OK(launcher->WaitForStdout("[here/1] end\n", kSoon));
  go.Open();
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 0) << launcher->err();
  EXPECT_THAT(launcher->err(),
              AllOf(HasSubstr("exited with code 5; it is started again (1 of "
                              "3)"),
                    HasSubstr("it is started again (2 of 3)"),
                    Not(HasSubstr("went on without"))));
  std::vector<std::string> incarnations;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(launcher->out(), '\n'))) {
    const size_t at = line.find("life of ");
    if (at != std::string::npos) incarnations.push_back(line.substr(at + 8));
  }
  ASSERT_THAT(incarnations, SizeIs(3));
  EXPECT_THAT(std::set<std::string>(incarnations.begin(), incarnations.end()),
              SizeIs(3));
  for (int life = 0; life < 3; ++life) {
    EXPECT_THAT(launcher->err(),
                HasSubstr(absl::StrCat("reported 1 ", life < 2 ? 5 : 0, " of ",
                                       incarnations[life], "\n")));
  }
}

TEST(LauncherTest, AJobWhoseWorkersAllFailReturnsTheFirstFailure) {
  auto launcher = LaunchWorkers("2:1", "echo try; exit 9");
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 9);
  EXPECT_THAT(launcher->err(), AllOf(HasSubstr("is not started again"),
                                     HasSubstr("first failure: worker here/")));
  EXPECT_THAT(
      std::vector<std::string>(absl::StrSplit(launcher->out(), "try\n")),
      SizeIs(2 * 2 + 1));
}

TEST(LauncherTest, ADrainIsForwardedAndNoWorkerIsRestarted) {
  auto launcher = LaunchWorkers(
      "2:9",
      "trap 'echo drained; exit $COXSWAIN_LOCAL_RANK' TERM; echo ready; "
      "while :; do sleep 1000 & wait; done");
  ASSERT_OK(launcher->WaitForStdout("[here/0] ready", kSoon));
  ASSERT_OK(launcher->WaitForStdout("[here/1] ready", kSoon));
  launcher->Signal(SIGTERM);
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_THAT(exit.Status(), testing::AnyOf(0, 1))
      << "the last of them decides";
  EXPECT_THAT(launcher->out(), AllOf(HasSubstr("[here/0] drained"),
                                     HasSubstr("[here/1] drained")));
  EXPECT_THAT(launcher->err(), Not(HasSubstr("is started again")));
}

TEST(LauncherTest, AStatusDistinguishesADrainFromAnEnd) {
  const std::string script =
      "trap 'exit $STATUS' TERM; echo ready; "
      "while :; do sleep 1000 & wait; done";
  for (const auto& [own, expected] :
       std::vector<std::pair<int, int>>{{0, 75}, {3, 3}}) {
    auto launcher = LaunchWorkers(1, absl::StrCat("STATUS=", own, "; ", script),
                                  {kForever, "1h:75"});
    ASSERT_OK(launcher->WaitForStdout("ready", kSoon));
    launcher->Signal(SIGTERM);
    ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
    EXPECT_EQ(exit.Status(), expected);
  }
  // No stop was requested.
  auto launcher = LaunchWorkers(1, "exit 0", {kForever, "1h:75"});
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kSoon));
  EXPECT_EQ(exit.Status(), 0);
}

TEST(LauncherTest, AStalledReaderDoesNotHoldUpTheEnd) {
  // The launcher's output is not read while the script fills it.
  auto launcher =
      LaunchWorkers(2,
                    "if [ $COXSWAIN_LOCAL_RANK = 1 ]; then exit 3; fi; "
                    "head -c 10000000 /dev/zero | tr '\\0' '\\n'; exit 4",
                    {"0s", "0s"});
  EXPECT_TRUE(WaitUntilEnded(launcher->pid(), kSoon));
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
