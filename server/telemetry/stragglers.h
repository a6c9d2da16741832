#ifndef COXSWAIN_SERVER_TELEMETRY_STRAGGLERS_H_
#define COXSWAIN_SERVER_TELEMETRY_STRAGGLERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace coxswain::server {

// A rank is a straggler of a step if it computed for more than kStragglerFactor
// times the lower median of all ranks that reported the step, and for more than
// kStragglerSeconds longer. What it waited does not count: others make it wait.
inline constexpr double kStragglerFactor = 1.5;
inline constexpr double kStragglerSeconds = 0.005;
// Over how many of a job's last steps PersistentStragglers looks, wherever they
// are shown.
inline constexpr int kStragglerSteps = 8;
// Returns the same, as a sentence.
std::string StragglerRule();

// What ranks computed, and how long they took in all, for a row of steps.
// Negative: the rank did not report the step.
struct StepMatrix {
  int64_t first_step = 0;
  size_t steps = 0;
  size_t ranks = 0;
  std::vector<float> compute;   // by rank, then step
  std::vector<float> duration;  // likewise
};

struct StepSummary {
  int64_t step = 0;
  int reported = 0;
  double compute_median = 0;  // the lower one
  double compute_max = 0;
  double duration_max = 0;
  int slowest_rank = 0;         // computed longest
  std::vector<int> stragglers;  // ascending
};

// Of the steps that some rank reported, the oldest first.
std::vector<StepSummary> SummariseSteps(const StepMatrix& matrix);

// Ranks that are stragglers of at least half of these steps, ascending.
std::vector<int> PersistentStragglers(const std::vector<StepSummary>& steps);

// Returns how many of these steps end in a second; 0: not known.
double StepsPerSecond(const std::vector<StepSummary>& steps);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_TELEMETRY_STRAGGLERS_H_
