#include "tests/support/process.h"

#include <csignal>
#include <cstdlib>

#include "base/status_matchers.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(20);

std::unique_ptr<Process> Shell(const std::string& script) {
  auto process = Process::Start({{"/bin/sh", "-c", script}, {}});
  EXPECT_OK(process);
  return std::move(process).value();
}

TEST(ProcessTest, OutputAndExitCodeAreCollected) {
  auto process = Shell("echo out; echo err >&2; exit 3");
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, process->Wait(kSoon));
  EXPECT_EQ(exit.code, 3);
  EXPECT_EQ(exit.signal, 0);
  EXPECT_EQ(process->out(), "out\n");
  EXPECT_EQ(process->err(), "err\n");
}

TEST(ProcessTest, MuchOutputDoesNotBlock) {
  auto process = Shell("head -c 1000000 /dev/zero");
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, process->Wait(kSoon));
  EXPECT_EQ(exit.code, 0);
  EXPECT_EQ(process->out().size(), 1000000u);
}

TEST(ProcessTest, AProgramThatIsMissingIsAnError) {
  EXPECT_THAT(
      Process::Start({{"/nonexistent/program"}, {}}),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/program")));
}

TEST(ProcessTest, EveryWaitHasADeadline) {
  auto process = Shell("echo begun; exec sleep 1000");
  ASSERT_OK(process->WaitForStdout("begun", kSoon));
  EXPECT_THAT(
      process->WaitForStdout("ended", absl::Milliseconds(1)),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("begun")));
  EXPECT_THAT(process->Wait(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("has not ended")));
}

TEST(ProcessTest, TextThatNeverComesIsNotWaitedFor) {
  auto process = Shell("echo one");
  EXPECT_THAT(process->WaitForStdout("two", kSoon),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("one")));
}

TEST(ProcessTest, SignalsAreSeenInTheExit) {
  auto process = Shell("echo begun; exec sleep 1000");
  ASSERT_OK(process->WaitForStdout("begun", kSoon));
  process->Signal(SIGTERM);
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, process->Wait(kSoon));
  EXPECT_EQ(exit.signal, SIGTERM);
  EXPECT_EQ(exit.Status(), 128 + SIGTERM);
}

TEST(ProcessTest, ItsWholeGroupEndsWithTheObject) {
  auto process = Shell("sleep 1000 & echo $!.; wait");
  ASSERT_OK(process->WaitForStdout(".", kSoon));
  const pid_t grandchild = std::atoi(process->out().c_str());
  ASSERT_GT(grandchild, 1);
  const pid_t child = process->pid();
  process.reset();
  EXPECT_TRUE(WaitUntilEnded(child, kSoon));
  EXPECT_TRUE(WaitUntilEnded(grandchild, kSoon));
}

TEST(ProcessTest, TheEnvironmentOfTheTestIsExtended) {
  setenv("COXSWAIN_JOB", "the test's", 1);
  ASSERT_OK_AND_ASSIGN(
      auto process,
      Process::Start({{"/bin/sh", "-c", "echo $ADDED:$COXSWAIN_JOB:"},
                      {{"ADDED", "yes"}}}));
  ASSERT_OK(process->Wait(kSoon));
  EXPECT_EQ(process->out(), "yes::\n");
}

}  // namespace
}  // namespace coxswain
