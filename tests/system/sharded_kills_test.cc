#include "gtest/gtest.h"
#include "tests/support/environment.h"
#include "tests/system/random_kills.h"

namespace coxswain {
namespace {

// KILLS and SECONDS come from the environment of the targets, and the SEED of
// another run from --test_env. What is lost with a worker comes from a
// checkpoint, whose step all go back to.
TEST(ShardedKillsTest, NothingHangsNothingIsLeftAndStatesAreExact) {
  RandomKills::Options options;
  options.program = "tests/system/toy/sharded_toy";
  options.kills = static_cast<int>(FromEnvironment("KILLS", 100));
  options.at_most = absl::Seconds(FromEnvironment("SECONDS", 1500));
  options.seed = static_cast<uint64_t>(FromEnvironment("SEED", 1));
  options.backend = options.seed % 2 == 1 ? "shm" : "tcp";
  RandomKills(options).Run();
}

}  // namespace
}  // namespace coxswain
