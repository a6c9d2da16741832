#include "examples/fashion_mnist/display.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/progress/display.h"

namespace coxswain::examples {
namespace {

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
