#ifndef COXSWAIN_TESTS_SCENARIOS_JOIN_MISMATCH_H_
#define COXSWAIN_TESTS_SCENARIOS_JOIN_MISMATCH_H_

#include <map>
#include <string>
#include <vector>

namespace coxswain {

// How a job of four workers ended that two launchers had started.
struct JoinMismatch {
  std::map<std::string, std::string> errors;  // worker "bow/0": its stderr
  std::string launchers;  // what these have printed and said themselves
  std::string log;        // of the coordinator
  std::string present;    // "4 of 4 workers"
};

// Starts a coordinator and, for one job, a launcher on node "bow" and another
// one on node "stroke", each with two workers of these options: ranks 0 and 1,
// and 2 and 3. Of more nodes nobody comes. Expects that all processes end by
// themselves within a time, and the launchers with exit code 1.
JoinMismatch RunDifferently(const std::vector<std::string>& bow_options,
                            const std::vector<std::string>& stroke_options,
                            int nodes = 2);

// Expects that each of the four workers, and the coordinator in its log, have
// told these differences and no others, and that no worker has joined.
void ExpectToldEverywhere(const JoinMismatch& mismatch,
                          const std::vector<std::string>& differences);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SCENARIOS_JOIN_MISMATCH_H_
