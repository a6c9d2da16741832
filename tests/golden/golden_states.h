#ifndef COXSWAIN_TESTS_GOLDEN_GOLDEN_STATES_H_
#define COXSWAIN_TESTS_GOLDEN_GOLDEN_STATES_H_

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "tests/conformance/averager_team.h"
#include "tests/conformance/hook_world.h"

// The states of which hook_states/ holds the bytes: each of a job of two ranks
// that has trained a tiny model for a few steps.

namespace coxswain {

struct GoldenState {
  std::string name;  // of its files
  std::string spec;
  bool averager = false;
};

inline void PrintTo(const GoldenState& golden, std::ostream* out) {
  *out << golden.spec;
}

// Returns each kind of state.
const std::vector<GoldenState>& GoldenStates();

// Returns the two ranks, not yet trained.
HookWorld MakeGoldenWorld(const GoldenState& golden);
AveragerTeam MakeGoldenTeam(const GoldenState& golden);

// Returns the bytes of each file of a state, by the file's name: NAME.cxhs,
// merged, as a checkpoint has it, and, of a hook, NAME.own0.cxhs and
// NAME.own1.cxhs, each rank's own.
std::map<std::string, std::string> TrainedStates(const GoldenState& golden);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_GOLDEN_GOLDEN_STATES_H_
