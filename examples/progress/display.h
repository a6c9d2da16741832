#ifndef COXSWAIN_EXAMPLES_PROGRESS_DISPLAY_H_
#define COXSWAIN_EXAMPLES_PROGRESS_DISPLAY_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "examples/progress/step_event.h"

namespace coxswain::examples {

// Shows the progress of training: on a terminal one bar that is drawn over
// itself, elsewhere a plain line every tenth of the run. One thread only.
class ProgressDisplay {
 public:
  // `terminal`: whether it is printed to one.
  explicit ProgressDisplay(bool terminal) : terminal_(terminal) {}

  // Begins a new run.
  void Begin(absl::string_view name);
  // Returns the text to print now; empty if there is none yet.
  std::string Show(const StepEvent& event);
  // Returns the text that ends the bar.
  std::string End();

 private:
  bool terminal_;
  std::string name_;
  int64_t tenths_shown_ = 0;
  bool drawn_ = false;
};

// "827.7 kB" (decimal units).
std::string HumanBytes(double bytes);

// Reads a trainer's events from standard input until it ends, draws their
// progress on standard output, and appends them to the file `into`. Lines that
// are no events go on to standard error. Returns whether there was a result: a
// trainer that failed has printed the reason on standard error.
bool ShowProgress(const std::string& name, const std::string& into);

}  // namespace coxswain::examples

#endif  // COXSWAIN_EXAMPLES_PROGRESS_DISPLAY_H_
