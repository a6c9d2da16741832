#include "server/telemetry/stragglers.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coxswain::server {
namespace {

// Returns the lower median: of two ranks the faster one is the measure.
double LowerMedian(std::vector<float> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

bool IsStraggler(double compute, double median) {
  return compute > kStragglerFactor * median &&
         compute > median + kStragglerSeconds;
}

StepSummary Summarise(const StepMatrix& matrix, size_t column) {
  StepSummary summary;
  summary.step = matrix.first_step + static_cast<int64_t>(column);
  std::vector<float> computed;
  for (size_t rank = 0; rank < matrix.ranks; ++rank) {
    const size_t cell = rank * matrix.steps + column;
    if (matrix.compute[cell] < 0) continue;
    const double compute = matrix.compute[cell];
    if (computed.empty() || compute > summary.compute_max) {
      summary.compute_max = compute;
      summary.slowest_rank = static_cast<int>(rank);
    }
    summary.duration_max =
        std::max<double>(summary.duration_max, matrix.duration[cell]);
    computed.push_back(matrix.compute[cell]);
  }
  summary.reported = static_cast<int>(computed.size());
  if (computed.empty()) return summary;
  summary.compute_median = LowerMedian(std::move(computed));
  for (size_t rank = 0; rank < matrix.ranks; ++rank) {
    const float compute = matrix.compute[rank * matrix.steps + column];
    if (compute >= 0 && IsStraggler(compute, summary.compute_median)) {
      summary.stragglers.push_back(static_cast<int>(rank));
    }
  }
  return summary;
}

}  // namespace

std::string StragglerRule() {
  return absl::StrCat(
      "A rank is a straggler of a step if it computed for more "
      "than ",
      kStragglerFactor,
      " times the lower median of all ranks that reported the "
      "step, and for more than ",
      kStragglerSeconds, " s longer.");
}

std::vector<StepSummary> SummariseSteps(const StepMatrix& matrix) {
  std::vector<StepSummary> summaries;
  for (size_t column = 0; column < matrix.steps; ++column) {
    StepSummary summary = Summarise(matrix, column);
    if (summary.reported > 0) summaries.push_back(std::move(summary));
  }
  return summaries;
}

std::vector<int> PersistentStragglers(const std::vector<StepSummary>& steps) {
  std::map<int, size_t> times;
  for (const StepSummary& step : steps) {
    for (const int rank : step.stragglers) ++times[rank];
  }
  std::vector<int> ranks;
  for (const auto& [rank, count] : times) {
    if (2 * count >= steps.size()) ranks.push_back(rank);
  }
  return ranks;
}

double StepsPerSecond(const std::vector<StepSummary>& steps) {
  double seconds = 0;
  for (const StepSummary& step : steps) seconds += step.duration_max;
  return seconds > 0 ? static_cast<double>(steps.size()) / seconds : 0;
}

}  // namespace coxswain::server
