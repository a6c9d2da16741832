#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/integration/killed_ranks.h"
#include "tests/support/environment.h"

namespace coxswain {
namespace {

using testing::IsEmpty;

constexpr int kKilledARound = 2;

// ROUNDS comes from the environment of the target, and the SEED of another run
// from --test_env.
TEST(TcpKillsTest, SurvivorsEndWithAnErrorAndSumsAreExact) {
  const std::vector<std::string> stages = {
      "connect", "mixed", "small",    "mixed", "pieces",   "means",
      "gather",  "mixed", "messages", "mixed", "channels", "split"};
  const auto rounds = static_cast<int>(FromEnvironment("ROUNDS", 48));
  const auto seed = static_cast<uint64_t>(FromEnvironment("SEED", 1));
  int killed = 0;
  for (int i = 0; i < rounds && !HasFailure(); ++i) {
    const std::string& stage = stages[static_cast<size_t>(i) % stages.size()];
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", round ", i, ": ", stage));
    KilledRanks ranks("tcp", stage,
                      seed * 1'000'000 + static_cast<uint64_t>(i));
    ranks.Start(kKilledARound);
    killed += ranks.AwaitVictims();
    ranks.CheckSurvivors();
    EXPECT_THAT(OwnProcesses(), IsEmpty());
  }
  EXPECT_EQ(killed, rounds * kKilledARound);
  std::printf("%d kills\n", killed);
}

// As one is whose machine has no power left for it, or that a debugger holds:
// its connections stay, and nothing moves.
TEST(TcpKillsTest, ARankThatIsStoppedAmidItsMeansIsNamedByTheDeadline) {
  KilledRanks ranks("tcp", "means", /*seed=*/1, /*ranks=*/2);
  ranks.StartAll(absl::Seconds(2));
  ranks.StallOne(1);
  EXPECT_THAT(OwnProcesses(), IsEmpty());
}

}  // namespace
}  // namespace coxswain
