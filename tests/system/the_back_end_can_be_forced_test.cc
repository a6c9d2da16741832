#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::SizeIs;

// Returns what the ranks of a small job print.
std::string RunJob(const std::vector<std::string>& before,
                   const std::vector<std::string>& run_options) {
  std::vector<std::string> command = before;
  for (const std::string& word : Launcher(run_options, {"--steps", "3"})) {
    command.push_back(word);
  }
  const auto launcher = Start(command);
  const auto exit = launcher->Wait(kTimeout);
  EXPECT_OK(exit);
  EXPECT_TRUE(exit.ok() && exit->Status() == 0) << launcher->err();
  return launcher->out();
}

TEST(BackEndTest, OneHostSharesMemory) {
  const std::string out = RunJob({}, {"--nproc", "2"});
  EXPECT_THAT(LinesWith(out, "through shm"), SizeIs(2)) << out;
}

TEST(BackEndTest, TheCommandLineForcesAnother) {
  const std::string out = RunJob({}, {"--nproc", "2", "--backend", "tcp"});
  EXPECT_THAT(LinesWith(out, "through tcp"), SizeIs(2)) << out;
}

TEST(BackEndTest, TheEnvironmentForcesAnother) {
  const std::string out =
      RunJob({"/usr/bin/env", "COXSWAIN_BACKEND=tcp"}, {"--nproc", "2"});
  EXPECT_THAT(LinesWith(out, "through tcp"), SizeIs(2)) << out;
}

TEST(BackEndTest, OneRankNeedsNone) {
  const std::string out = RunJob({}, {"--nproc", "1"});
  EXPECT_THAT(LinesWith(out, "through loopback"), SizeIs(1)) << out;
}

}  // namespace
}  // namespace coxswain
