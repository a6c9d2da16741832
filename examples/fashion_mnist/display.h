#ifndef COXSWAIN_EXAMPLES_FASHION_MNIST_DISPLAY_H_
#define COXSWAIN_EXAMPLES_FASHION_MNIST_DISPLAY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "examples/fashion_mnist/events.h"

namespace coxswain::examples {

// Shows the progress of training: on a terminal one bar that is drawn over
// itself, elsewhere a plain line every tenth of the run. One thread only.
class ProgressDisplay {
 public:
  // `terminal`: whether it is printed to one.
  explicit ProgressDisplay(bool terminal) : terminal_(terminal) {}

  // Begins a new run.
  void Begin(absl::string_view hook);
  // Returns the text to print now; empty if there is none yet.
  std::string Show(const StepEvent& event);
  // Returns the text that ends the bar.
  std::string End();

 private:
  bool terminal_;
  std::string hook_;
  int64_t tenths_shown_ = 0;
  bool drawn_ = false;
};

// "827.7 kB" (decimal units).
std::string HumanBytes(double bytes);

// Returns the closing table, one row a run, and a warning for each run whose
// hook never started to compress.
std::string ResultTable(const std::vector<ResultEvent>& results);

// {"world_size": N, "mode": M, "runs": [{hook, steps, test_accuracy, ...}]};
// an empty mode is left out.
std::string ResultJson(int world_size, const std::vector<ResultEvent>& results,
                       const std::string& mode = "");

}  // namespace coxswain::examples

#endif  // COXSWAIN_EXAMPLES_FASHION_MNIST_DISPLAY_H_
