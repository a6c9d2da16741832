#include "examples/progress/display.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace coxswain::examples {
namespace {

constexpr int kBarWidth = 24;

std::string Numbers(const StepEvent& event) {
  return absl::StrFormat("step %d/%d  loss %.3f  %.0f %s/s  %s/step",
                         event.step, event.steps, event.loss, event.per_second,
                         event.unit, HumanBytes(event.bytes_sent_per_step));
}

std::string Bar(const StepEvent& event) {
  const int64_t filled =
      event.steps > 0 ? kBarWidth * event.step / event.steps : 0;
  const auto width =
      static_cast<size_t>(std::clamp<int64_t>(filled, 0, kBarWidth));
  return absl::StrCat("[", std::string(width, '#'),
                      std::string(kBarWidth - width, '.'), "]");
}

}  // namespace

std::string HumanBytes(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(units)) {
    bytes /= 1000;
    ++unit;
  }
  return absl::StrFormat(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

void ProgressDisplay::Begin(absl::string_view name) {
  name_ = std::string(name);
  tenths_shown_ = 0;
  drawn_ = false;
}

std::string ProgressDisplay::Show(const StepEvent& event) {
  if (terminal_) {
    drawn_ = true;
    // Returns to the first column, and clears the rest of a longer line.
    return absl::StrCat("\r", name_, " ", Bar(event), " ", Numbers(event),
                        "\x1b[K");
  }
  const int64_t tenths = event.steps > 0 ? 10 * event.step / event.steps : 0;
  if (tenths <= tenths_shown_) return "";
  tenths_shown_ = tenths;
  return absl::StrCat(name_, ": ", Numbers(event), "\n");
}

std::string ProgressDisplay::End() {
  if (!drawn_) return "";
  drawn_ = false;
  return "\n";
}

bool ShowProgress(const std::string& name, const std::string& into) {
  ProgressDisplay display(isatty(STDOUT_FILENO) == 1);
  display.Begin(name);
  std::ofstream file(into, std::ios::app);
  bool done = false;
  std::string line;
  while (std::getline(std::cin, line)) {
    const std::string kind = KindOfEvent(&line);
    if (kind.empty()) {
      std::cerr << display.End() << line << std::endl;
      continue;
    }
    file << line << "\n";
    if (kind == "result") done = true;
    if (kind != "step") continue;
    try {
      std::cout << display.Show(StepFrom(nlohmann::json::parse(line)))
                << std::flush;
    } catch (const std::exception& error) {
      std::cerr << display.End() << line << ": " << error.what() << std::endl;
    }
  }
  std::cout << display.End() << std::flush;
  return done && file.flush().good();
}

}  // namespace coxswain::examples
