// Shows the output of trainers, for quickstart.sh:
//   coxswain run ... -- train --events | report progress --hook H --into F
//   report table --world 2 --json OUT F
// `progress` reads events from standard input, draws a bar, and appends them to
// F; lines that are no events are passed on to standard error.
// `table` prints the results of F.

#include <fstream>
#include <iostream>
#include <string>
#include <variant>
#include <vector>

#include "CLI/CLI.hpp"
#include "examples/fashion_mnist/display.h"
#include "examples/fashion_mnist/events.h"
#include "examples/progress/display.h"

namespace coxswain::examples {
namespace {

int Table(int world_size, const std::string& mode, const std::string& json,
          const std::string& from) {
  std::vector<ResultEvent> results;
  std::ifstream file(from);
  std::string line;
  while (std::getline(file, line)) {
    const auto event = ParseEvent(line);
    if (event.ok() && std::holds_alternative<ResultEvent>(*event)) {
      results.push_back(std::get<ResultEvent>(*event));
    }
  }
  if (results.empty()) {
    std::cerr << "report: " << from << " has no results" << std::endl;
    return 1;
  }
  std::cout << ResultTable(results);
  if (!mode.empty()) std::cout << "mode: " << mode << "\n";
  std::cout << std::flush;
  if (json.empty()) return 0;
  std::ofstream out(json);
  out << ResultJson(world_size, results, mode) << std::flush;
  if (out.good()) return 0;
  std::cerr << "report: cannot write " << json << std::endl;
  return 1;
}

int Main(int argc, char** argv) {
  CLI::App app("Shows the progress and results of quickstart.sh");
  app.require_subcommand(1);
  std::string hook, into, mode, json, from;
  int world_size = 0;
  auto* progress = app.add_subcommand("progress", "draw events from stdin");
  progress->add_option("--hook", hook, "the run's name")->required();
  progress->add_option("--into", into, "file for the events")->required();
  auto* table = app.add_subcommand("table", "print the results");
  table->add_option("--world", world_size, "number of workers")->required();
  table->add_option("--mode", mode, "how gradients were exchanged");
  table->add_option("--json", json, "also write them here");
  table->add_option("results", from, "file with results")->required();
  CLI11_PARSE(app, argc, argv);
  if (*progress) return ShowProgress(hook, into) ? 0 : 1;
  return Table(world_size, mode, json, from);
}

}  // namespace
}  // namespace coxswain::examples

int main(int argc, char** argv) { return coxswain::examples::Main(argc, argv); }
