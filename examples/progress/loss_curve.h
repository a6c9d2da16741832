#ifndef COXSWAIN_EXAMPLES_PROGRESS_LOSS_CURVE_H_
#define COXSWAIN_EXAMPLES_PROGRESS_LOSS_CURVE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace coxswain::examples {

// The losses of a run.
struct LossCurve {
  std::string name;
  std::vector<std::pair<int64_t, double>> points;  // step and loss
};

// Returns a chart of them for a terminal, with a legend. Each run has a letter,
// from a on; where several have a point in one place, the first one's is shown.
// Losses that are not finite are left out. Empty where there is nothing to
// draw.
std::string DrawLossCurves(const std::vector<LossCurve>& curves, int width = 64,
                           int height = 14);

}  // namespace coxswain::examples

#endif  // COXSWAIN_EXAMPLES_PROGRESS_LOSS_CURVE_H_
