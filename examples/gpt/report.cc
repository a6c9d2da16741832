// Shows the output of gpt, for compare.sh:
//   coxswain run ... -- gpt --events | report progress --name N --into F
//   report table --json OUT F
// `progress` reads events from standard input, draws a bar, and appends them to
// F. `table` draws the loss curves of F's runs, prints their results, and
// compares the losses of those that are to have the same: exit code 1 if they
// differ.

#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "examples/gpt/result.h"
#include "examples/progress/display.h"
#include "examples/progress/loss_curve.h"

namespace coxswain::examples::gpt {
namespace {

int Fail(const absl::Status& status) {
  std::cerr << "report: " << status.message() << std::endl;
  return 1;
}

bool WriteJson(const std::vector<TrainedRun>& runs, const std::string& path) {
  nlohmann::json all = nlohmann::json::array();
  for (const TrainedRun& run : runs) {
    all.push_back(ToJson(run.result));
    all.back().erase("event");
  }
  std::ofstream out(path);
  out << nlohmann::json({{"runs", all}}).dump(2) << "\n" << std::flush;
  return out.good();
}

int Table(const std::string& json, const std::string& from) {
  const auto runs = ReadRuns(from);
  if (!runs.ok()) return Fail(runs.status());
  std::vector<LossCurve> curves;
  for (const TrainedRun& run : *runs) curves.push_back(run.curve);
  std::cout << "\n" << DrawLossCurves(curves) << TableOf(*runs) << std::flush;
  if (!json.empty() && !WriteJson(*runs, json)) {
    return Fail(absl::UnknownError("cannot write " + json));
  }
  const auto difference = CompareLosses(*runs);
  if (!difference.ok()) return Fail(difference.status());
  std::cout << absl::StrFormat(
                   "Losses with allreduce are those of one rank at all steps "
                   "shown: they differ by %.1g at most.",
                   *difference)
            << std::endl;
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("Shows the progress and results of gpt");
  app.require_subcommand(1);
  std::string name, into, json, from;
  auto* progress = app.add_subcommand("progress", "draw events from stdin");
  progress->add_option("--name", name, "the run's")->required();
  progress->add_option("--into", into, "file for the events")->required();
  auto* table = app.add_subcommand("table", "compare the runs");
  table->add_option("--json", json, "also write the results here");
  table->add_option("events", from, "file with events")->required();
  CLI11_PARSE(app, argc, argv);
  if (*progress) return ShowProgress(name, into) ? 0 : 1;
  return Table(json, from);
}

}  // namespace
}  // namespace coxswain::examples::gpt

int main(int argc, char** argv) {
  return coxswain::examples::gpt::Main(argc, argv);
}
