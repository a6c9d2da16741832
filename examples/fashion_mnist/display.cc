#include "examples/fashion_mnist/display.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace coxswain::examples {
namespace {

constexpr int kBarWidth = 24;

std::string Numbers(const StepEvent& event) {
  return absl::StrFormat("step %d/%d  loss %.3f  %.0f images/s  %s/step",
                         event.step, event.steps, event.loss,
                         event.images_per_second,
                         HumanBytes(event.bytes_sent_per_step));
}

std::string Bar(const StepEvent& event) {
  const int64_t filled =
      event.steps > 0 ? kBarWidth * event.step / event.steps : 0;
  const auto width =
      static_cast<size_t>(std::clamp<int64_t>(filled, 0, kBarWidth));
  return absl::StrCat("[", std::string(width, '#'),
                      std::string(kBarWidth - width, '.'), "]");
}

std::string Row(const ResultEvent& r) {
  const std::string bytes = r.compressed_steps > 0
                                ? HumanBytes(r.bytes_sent_per_step)
                                : std::string("-");
  const std::string ratio = r.compressed_steps > 0
                                ? absl::StrFormat("%.1fx", r.compression_ratio)
                                : std::string("-");
  return absl::StrFormat("%-34s %6d %10d %9.2f%% %10s %7s %9.0f %8.1f\n",
                         r.hook, r.steps, r.compressed_steps,
                         100 * r.test_accuracy, bytes, ratio,
                         r.images_per_second, r.wall_seconds);
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

void ProgressDisplay::Begin(absl::string_view hook) {
  hook_ = std::string(hook);
  tenths_shown_ = 0;
  drawn_ = false;
}

std::string ProgressDisplay::Show(const StepEvent& event) {
  if (terminal_) {
    drawn_ = true;
    // Returns to the first column, and clears the rest of a longer line.
    return absl::StrCat("\r", hook_, " ", Bar(event), " ", Numbers(event),
                        "\x1b[K");
  }
  const int64_t tenths = event.steps > 0 ? 10 * event.step / event.steps : 0;
  if (tenths <= tenths_shown_) return "";
  tenths_shown_ = tenths;
  return absl::StrCat(hook_, ": ", Numbers(event), "\n");
}

std::string ProgressDisplay::End() {
  if (!drawn_) return "";
  drawn_ = false;
  return "\n";
}

std::string ResultTable(const std::vector<ResultEvent>& results) {
  std::string table = absl::StrFormat(
      "\n%-34s %6s %10s %10s %10s %7s %9s %8s\n", "hook", "steps", "compressed",
      "accuracy", "sent/step", "ratio", "images/s", "seconds");
  for (const ResultEvent& result : results) table += Row(result);
  table +=
      "sent/step: bytes that one rank hands to collectives in a compressed "
      "step;\nratio: against the same gradients in fp32.\n";
  for (const ResultEvent& r : results) {
    if (r.compressed_steps > 0) continue;
    absl::StrAppend(&table, "warning: ", r.hook, " compressed none of its ",
                    r.steps, " steps; train longer or lower its start_step\n");
  }
  return table;
}

std::string ResultJson(int world_size, const std::vector<ResultEvent>& results,
                       const std::string& mode) {
  nlohmann::json runs = nlohmann::json::array();
  for (const ResultEvent& result : results) {
    auto run = nlohmann::json::parse(ToJsonLine(result));
    run.erase("event");
    run.erase("world_size");
    runs.push_back(std::move(run));
  }
  nlohmann::json all = {{"world_size", world_size}, {"runs", runs}};
  if (!mode.empty()) all["mode"] = mode;
  return all.dump(2) + "\n";
}

}  // namespace coxswain::examples
