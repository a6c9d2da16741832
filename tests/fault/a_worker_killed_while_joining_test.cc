#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/status_matchers.h"
#include "tests/fault/crew.h"

namespace coxswain {
namespace {

// Two of four have joined and wait; one of them is killed and started again.
// The round goes on, and completes when the others come.
TEST(KillWhileJoiningTest, TheRoundCompletesWithItsNextIncarnation) {
  Crew crew;
  crew.Serve();
  const std::vector<std::string> run = {"--nnodes", "2", "--max-restarts", "1"};
  const auto first = crew.Start({"a", 2, run, kLongToy});
  ASSERT_TRUE(crew.AwaitDescribed("two have joined", [](const auto& job) {
    return job.members_size() == 2;
  }));
  const std::vector<pid_t> pids = crew.PidsOf(first);
  ASSERT_EQ(pids.size(), 2u);
  ASSERT_EQ(kill(pids[0], SIGKILL), 0);
  ASSERT_TRUE(crew.Await("it is started again", [&] {
    return absl::StrContains(crew.Transcript(), "it is started again (1 of 1)");
  }));
  const auto second = crew.Start({"b", 2, run, kLongToy});
  ASSERT_TRUE(crew.AwaitSteps(4, 20));
  crew.EndTraining();
  crew.Finish({{first, 0}, {second, 0}});
  crew.ExpectExactAndEqual(4);
}

}  // namespace
}  // namespace coxswain
