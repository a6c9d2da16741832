// The schedule's core under random histories: see world.h for what runs, and
// referee.h for what must hold. All of a history depends on its seed.
//
//   COXSWAIN_SIMULATION_SEED       the first seed
//   COXSWAIN_SIMULATION_HISTORIES  how many
//
// One that fails prints how to run it again; add its seed to seeds.txt, whose
// histories run first each time.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/simulation/history.h"
#include "tests/simulation/world.h"
#include "tests/support/environment.h"

namespace coxswain::simulation {
namespace {

constexpr int64_t kDefaultHistories = 2000;
// One of a thousand histories has a thousand ranks, and takes as long as they.
constexpr int kLargeHistories = 20;
constexpr int kLargeWorld = 1000;

std::vector<uint64_t> KeptSeeds() {
  std::ifstream file("tests/simulation/seeds.txt");
  EXPECT_TRUE(file.good()) << "tests/simulation/seeds.txt is missing";
  std::vector<uint64_t> seeds;
  for (std::string line; std::getline(file, line);) {
    uint64_t seed = 0;
    if (absl::SimpleAtoi(line.substr(0, line.find('#')), &seed)) {
      seeds.push_back(seed);
    }
  }
  return seeds;
}

// Runs it and complains; returns whether everything held.
bool Holds(uint64_t seed, World::Result* result) {
  const History history = History::Random(seed);
  *result = World(history).Run();
  if (result->violation.empty()) return true;
  ADD_FAILURE() << result->violation << "\n  in " << history.Describe()
                << "\n  again: bazel test //tests/simulation:simulation_test "
                   "--test_env=COXSWAIN_SIMULATION_SEED="
                << seed
                << " --test_env=COXSWAIN_SIMULATION_HISTORIES=1\n  keep it: "
                   "echo "
                << seed << " >> tests/simulation/seeds.txt";
  return false;
}

TEST(SimulationTest, HistoriesThatOnceFailedHold) {
  World::Result result;
  for (uint64_t seed : KeptSeeds()) Holds(seed, &result);
}

TEST(SimulationTest, HistoriesOfAThousandRanksHold) {
  auto seed =
      static_cast<uint64_t>(FromEnvironment("COXSWAIN_SIMULATION_SEED", 1));
  World::Result result;
  for (int found = 0; found < kLargeHistories; ++seed) {
    if (History::Random(seed).world_size != kLargeWorld) continue;
    ++found;
    if (!Holds(seed, &result)) return;
  }
}

TEST(SimulationTest, RandomHistoriesHold) {
  const int64_t first = FromEnvironment("COXSWAIN_SIMULATION_SEED", 1);
  const int64_t count =
      FromEnvironment("COXSWAIN_SIMULATION_HISTORIES", kDefaultHistories);
  World::Result sum;
  int failed = 0;
  std::map<std::string, int> endings;
  for (int64_t i = 0; i < count && failed < 5; ++i) {
    const uint64_t seed = static_cast<uint64_t>(first + i);
    World::Result result;
    if (!Holds(seed, &result)) ++failed;
    sum.rounds += result.rounds;
    sum.skips += result.skips;
    sum.stops += result.stops;
    sum.plan_changes += result.plan_changes;
    sum.events += result.events;
    sum.regroups += result.regroups;
    sum.checkpoints += result.checkpoints;
    sum.crashes += result.crashes;
    sum.made_again += result.made_again;
    sum.known_by_a_rank += result.known_by_a_rank;
    sum.plans_late += result.plans_late;
    if (!result.deviated) {
      ++endings["no deviation"];
      continue;
    }
    ++endings[absl::StrCat(ToString(History::Random(seed).deviation),
                           result.failure.ok() ? ", no abort" : ", abort")];
  }
  std::cout << count << " histories from seed " << first << ": " << sum.rounds
            << " rounds decided, " << sum.skips << " of them skipped, "
            << sum.plan_changes << " with a new plan, " << sum.stops
            << " with a stop, " << sum.regroups << " with a regroup, "
            << sum.checkpoints << " with a checkpoint; " << sum.crashes
            << " crashes, " << sum.made_again << " decisions made again, "
            << sum.known_by_a_rank << " reported by a rank, " << sum.plans_late
            << " with a plan from before a crash; " << sum.events
            << " events\n";
  for (const auto& [ending, number] : endings) {
    std::cout << "  " << number << ": " << ending << "\n";
  }
}

// The referee finds what follows from each way to break the core.
class SabotageTest : public testing::TestWithParam<Sabotage> {};

TEST_P(SabotageTest, IsFound) {
  const Deviation deviation = GetParam() == Sabotage::kHidesPipelines
                                  ? Deviation::kPipeline
                                  : Deviation::kNone;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    const History history = History::Random(seed);
    if (history.deviation != deviation) continue;
    if (!World(history, GetParam()).Run().violation.empty()) return;
  }
  FAIL() << "nothing was found in 3000 histories";
}

INSTANTIATE_TEST_SUITE_P(
    All, SabotageTest,
    testing::Values(Sabotage::kFlipsCommit, Sabotage::kRelabelsRounds,
                    Sabotage::kDelaysPlans, Sabotage::kDecidesAlone,
                    Sabotage::kSwallowsAnswers, Sabotage::kHidesPositions,
                    Sabotage::kForgetsLast, Sabotage::kForgetsPlan,
                    Sabotage::kHidesCheckpoints, Sabotage::kForgetsMesh,
                    Sabotage::kHidesPipelines));

}  // namespace
}  // namespace coxswain::simulation
