#include "tests/system/random_kills.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

// KILLS and SECONDS come from the target's environment; SEED too, from whoever
// repeats a failure.
uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

TEST(RandomKillsTest, NothingHangsNothingIsLeftAndSumsAreExact) {
  RandomKills::Options options;
  options.kills = static_cast<int>(FromEnvironment("KILLS", 100));
  options.at_most =
      absl::Seconds(static_cast<int64_t>(FromEnvironment("SECONDS", 100)));
  options.seed = FromEnvironment("SEED", 1);
  RandomKills(options).Run();
}

}  // namespace
}  // namespace coxswain
