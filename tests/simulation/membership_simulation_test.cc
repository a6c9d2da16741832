// The membership of a job under random histories: see membership_world.h for
// what runs, and membership_referee.h for what must hold. All of a history
// depends on its seed.
//
//   COXSWAIN_SIMULATION_SEED       the first seed
//   COXSWAIN_SIMULATION_HISTORIES  how many
#include <cstdint>
#include <functional>
#include <iostream>

#include "base/logging.h"
#include "gtest/gtest.h"
#include "tests/simulation/membership_history.h"
#include "tests/simulation/membership_world.h"
#include "tests/support/environment.h"

namespace coxswain::simulation {
namespace {

constexpr int64_t kDefaultHistories = 2000;
constexpr int kLargeHistories = 20;

class MembershipSimulationTest : public testing::Test {
 protected:
  void SetUp() override { SetLogLevel("off"); }

  // Runs it and complains; returns whether everything held.
  bool Holds(const MembershipHistory& history) {
    const MembershipWorld::Result result = MembershipWorld(history).Run();
    sum_.generations += result.generations;
    sum_.losses += result.losses;
    sum_.crashes += result.crashes;
    sum_.stops += result.stops;
    sum_.regroups += result.regroups;
    sum_.processes += result.processes;
    sum_.finished += result.finished;
    sum_.events += result.events;
    if (result.violation.empty()) return true;
    ADD_FAILURE()
        << result.violation << "\n  in " << history.Describe()
        << "\n  again: bazel test //tests/simulation:membership_simulation_test"
           " --test_env=COXSWAIN_SIMULATION_SEED="
        << history.seed << " --test_env=COXSWAIN_SIMULATION_HISTORIES=1";
    return false;
  }
  void Describe(int64_t count, int64_t first) const {
    std::cout << count << " histories from seed " << first << ": "
              << sum_.generations << " generations, " << sum_.losses
              << " of them ended by a loss, of " << sum_.processes
              << " processes; " << sum_.regroups << " regroups, "
              << sum_.crashes << " crashes, " << sum_.stops << " stops; "
              << sum_.finished << " jobs done; " << sum_.events << " events\n";
  }

  MembershipWorld::Result sum_;
};

TEST_F(MembershipSimulationTest, RandomHistoriesHold) {
  const int64_t first = FromEnvironment("COXSWAIN_SIMULATION_SEED", 1);
  const int64_t count =
      FromEnvironment("COXSWAIN_SIMULATION_HISTORIES", kDefaultHistories);
  int failed = 0;
  for (int64_t i = 0; i < count && failed < 5; ++i) {
    const auto seed = static_cast<uint64_t>(first + i);
    if (!Holds(MembershipHistory::Small(seed))) ++failed;
  }
  Describe(count, first);
}

TEST_F(MembershipSimulationTest, HistoriesOfAThousandWorkersHold) {
  const int64_t first = FromEnvironment("COXSWAIN_SIMULATION_SEED", 1);
  for (int64_t i = 0; i < kLargeHistories; ++i) {
    const auto seed = static_cast<uint64_t>(first + i);
    if (!Holds(MembershipHistory::Large(seed))) return;
  }
  Describe(kLargeHistories, first);
}

// The referee finds what follows from each way to break the machine.
class MembershipSabotageTest
    : public testing::TestWithParam<MembershipSabotage> {
 protected:
  void SetUp() override { SetLogLevel("off"); }
};

TEST_P(MembershipSabotageTest, IsFound) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    const MembershipHistory history = MembershipHistory::Small(seed);
    const auto result = MembershipWorld(history, GetParam()).Run();
    if (result.violation.empty()) continue;
    std::cout << "seed " << seed << ": " << result.violation << "\n";
    return;
  }
  FAIL() << "nothing was found in 500 histories";
}

INSTANTIATE_TEST_SUITE_P(All, MembershipSabotageTest,
                         testing::Values(MembershipSabotage::kRepliesEarly,
                                         MembershipSabotage::kBeginsUnwritten,
                                         MembershipSabotage::kRepeatsNumber,
                                         MembershipSabotage::kForgetsSurvivor,
                                         MembershipSabotage::kSwallowsAbort,
                                         MembershipSabotage::kSwallowsAnswer,
                                         MembershipSabotage::kMovesRank,
                                         MembershipSabotage::kHidesLeft,
                                         MembershipSabotage::kAnnouncesFirst,
                                         MembershipSabotage::kDropsHeartbeats,
                                         MembershipSabotage::kStopsLooking,
                                         MembershipSabotage::kLosesWrite));

}  // namespace
}  // namespace coxswain::simulation
