#ifndef COXSWAIN_EXAMPLES_FASHION_MNIST_DISPLAY_H_
#define COXSWAIN_EXAMPLES_FASHION_MNIST_DISPLAY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "examples/fashion_mnist/events.h"

namespace coxswain::examples {

// Shows how training goes on: one bar that is drawn over itself on a terminal,
// a plain line every tenth of the run elsewhere. One thread only.
class ProgressDisplay {
 public:
  // `terminal`: whether what is printed goes to one.
  explicit ProgressDisplay(bool terminal) : terminal_(terminal) {}

  // A new run begins.
  void Begin(absl::string_view hook);
  // The text to print now; empty if there is nothing to say yet.
  std::string Show(const StepEvent& event);
  // The text that ends the bar.
  std::string End();

 private:
  bool terminal_;
  std::string hook_;
  int64_t tenths_shown_ = 0;
  bool drawn_ = false;
};

// "827.7 kB" (decimal units).
std::string HumanBytes(double bytes);

// The closing table, one row a run, and a warning for each run whose hook
// never started to compress.
std::string ResultTable(const std::vector<ResultEvent>& results);

// {"world_size": N, "mode": M, "runs": [{hook, steps, test_accuracy, ...}]};
// an empty mode is left out.
std::string ResultJson(int world_size, const std::vector<ResultEvent>& results,
                       const std::string& mode = "");

}  // namespace coxswain::examples

#endif  // COXSWAIN_EXAMPLES_FASHION_MNIST_DISPLAY_H_
