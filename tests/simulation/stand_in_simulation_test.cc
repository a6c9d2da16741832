// The schedule under two who may decide: see stand_in_world.h for what runs.
//
//   COXSWAIN_SIMULATION_SEED       the first seed
//   COXSWAIN_SIMULATION_HISTORIES  how many
#include <cstdint>
#include <iostream>

#include "gtest/gtest.h"
#include "tests/simulation/stand_in_world.h"
#include "tests/support/environment.h"

namespace coxswain::simulation {
namespace {

TEST(StandInSimulationTest, AllRoundsAreDecidedAlike) {
  const int64_t first = FromEnvironment("COXSWAIN_SIMULATION_SEED", 1);
  const int64_t count = FromEnvironment("COXSWAIN_SIMULATION_HISTORIES", 2000);
  StandInWorld::Result sum;
  int failed = 0;
  for (int64_t i = 0; i < count && failed < 3; ++i) {
    const auto seed = static_cast<uint64_t>(first + i);
    const StandInWorld::Result result =
        StandInWorld(seed, Disloyalty::kNone).Run();
    if (!result.violation.empty()) {
      ADD_FAILURE() << result.violation << "\n  with seed " << seed;
      ++failed;
    }
    sum.by_coordinator += result.by_coordinator;
    sum.by_stand_in += result.by_stand_in;
    sum.forgotten += result.forgotten;
    sum.spells += result.spells;
    sum.crashes += result.crashes;
    sum.plans += result.plans;
  }
  std::cout << count << " histories from seed " << first << ": "
            << sum.by_coordinator << " rounds decided by the coordinator, "
            << sum.by_stand_in << " by the stand-in in " << sum.spells
            << " spells, " << sum.forgotten
            << " of the first made otherwise by the second; " << sum.plans
            << " new plans, " << sum.crashes << " crashes\n";
  EXPECT_GT(sum.by_stand_in, count);
  EXPECT_GT(sum.by_coordinator, count);
}

// That it would be found out.
class DisloyaltyTest : public testing::TestWithParam<Disloyalty> {};

TEST_P(DisloyaltyTest, IsFound) {
  // Rare in histories as they are drawn now: shortly before the first of them,
  // but for the long test.
  const bool rare = GetParam() == Disloyalty::kLeavesUnheard;
  const uint64_t first = rare && !EverySetting() ? 13000 : 1;
  for (uint64_t seed = first; seed <= first + 50000; ++seed) {
    if (!StandInWorld(seed, GetParam()).Run().violation.empty()) {
      RecordProperty("seed", static_cast<int>(seed));
      std::cout << "found with seed " << seed << "\n";
      return;
    }
  }
  FAIL() << "nothing was found in 50000 histories";
}

INSTANTIATE_TEST_SUITE_P(All, DisloyaltyTest,
                         testing::Values(Disloyalty::kListensToBoth,
                                         Disloyalty::kLeavesUnheard,
                                         Disloyalty::kHidesSpells,
                                         Disloyalty::kHearsOldSpells));

}  // namespace
}  // namespace coxswain::simulation
