#include "tests/system/random_kills.h"

#include "gtest/gtest.h"
#include "tests/support/environment.h"

namespace coxswain {
namespace {

// KILLS and SECONDS come from the environment of the target, and the SEED of
// another run from --test_env.
TEST(RandomKillsTest, NothingHangsNothingIsLeftAndSumsAreExact) {
  RandomKills::Options options;
  options.kills = static_cast<int>(FromEnvironment("KILLS", 100));
  options.at_most = absl::Seconds(FromEnvironment("SECONDS", 100));
  options.seed = static_cast<uint64_t>(FromEnvironment("SEED", 1));
  RandomKills(options).Run();
}

}  // namespace
}  // namespace coxswain
