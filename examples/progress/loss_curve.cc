#include "examples/progress/loss_curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace coxswain::examples {
namespace {

// What the chart's borders are.
struct ChartRange {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  int64_t steps = 0;
};

ChartRange RangeOf(const std::vector<LossCurve>& curves) {
  ChartRange range;
  for (const LossCurve& curve : curves) {
    for (const auto& [step, loss] : curve.points) {
      if (!std::isfinite(loss)) continue;
      range.low = std::min(range.low, loss);
      range.high = std::max(range.high, loss);
      range.steps = std::max(range.steps, step);
    }
  }
  return range;
}

// Returns which of `count` places a share from 0 to 1 lies in.
size_t PlaceOf(double share, int count) {
  const auto place = static_cast<int64_t>(std::lround(share * (count - 1)));
  return static_cast<size_t>(std::clamp<int64_t>(place, 0, count - 1));
}

}  // namespace

std::string DrawLossCurves(const std::vector<LossCurve>& curves, int width,
                           int height) {
  const ChartRange range = RangeOf(curves);
  if (range.steps == 0) return "";
  const double span = std::max(range.high - range.low, 1e-12);
  std::vector<std::string> rows(static_cast<size_t>(height),
                                std::string(static_cast<size_t>(width), ' '));
  for (size_t i = 0; i < curves.size(); ++i) {
    for (const auto& [step, loss] : curves[i].points) {
      if (!std::isfinite(loss)) continue;
      const double along =
          static_cast<double>(step) / static_cast<double>(range.steps);
      char& place = rows[PlaceOf((range.high - loss) / span, height)]
                        [PlaceOf(along, width)];
      if (place == ' ') place = static_cast<char>('a' + i % 26);
    }
  }
  std::string chart;
  for (size_t row = 0; row < rows.size(); ++row) {
    const double share = static_cast<double>(row) / (height - 1);
    // The borders, and each third row in between.
    const bool labelled = row % 3 == 0 || row + 1 == rows.size();
    absl::StrAppend(&chart,
                    labelled
                        ? absl::StrFormat("%7.3f", range.high - share * span)
                        : std::string(7, ' '),
                    " |", rows[row], "\n");
  }
  absl::StrAppend(&chart, "        +",
                  std::string(static_cast<size_t>(width), '-'), "\n");
  absl::StrAppend(&chart, absl::StrFormat("loss     0%*s\n", width - 1,
                                          absl::StrCat("step ", range.steps)));
  for (size_t i = 0; i < curves.size(); ++i) {
    absl::StrAppend(&chart, "  ",
                    std::string(1, static_cast<char>('a' + i % 26)), "  ",
                    curves[i].name, "\n");
  }
  return chart;
}

}  // namespace coxswain::examples
