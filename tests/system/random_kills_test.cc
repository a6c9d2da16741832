#include "tests/system/random_kills.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/environment.h"

namespace coxswain {
namespace {

// KILLS, SECONDS and CHURN_SECONDS come from the environment of the targets,
// and SEED and BACKEND of another run from --test_env.
std::string BackendOr(const char* otherwise) {
  const char* const backend = std::getenv("BACKEND");
  return backend == nullptr ? otherwise : backend;
}

TEST(RandomKillsTest, NothingHangsNothingIsLeftAndSumsAreExact) {
  RandomKills::Options options;
  options.kills = static_cast<int>(FromEnvironment("KILLS", 100));
  options.at_most = absl::Seconds(FromEnvironment("SECONDS", 100));
  options.seed = static_cast<uint64_t>(FromEnvironment("SEED", 1));
  options.backend = BackendOr(options.seed % 2 == 1 ? "shm" : "tcp");
  RandomKills(options).Run();
}

TEST(ChurnTest, NothingHangsNothingGrowsAndSumsAreExact) {
  RandomKills::Options options;
  options.kills = std::numeric_limits<int>::max();
  options.at_most = absl::Seconds(FromEnvironment("CHURN_SECONDS", 3600));
  options.seed = static_cast<uint64_t>(FromEnvironment("SEED", 1));
  options.backend = BackendOr("tcp");
  options.churn = true;
  // Each minute; sooner in a short run.
  options.coordinator_every = std::min(absl::Minutes(1), options.at_most / 3);
  RandomKills(options).Run();
}

}  // namespace
}  // namespace coxswain
