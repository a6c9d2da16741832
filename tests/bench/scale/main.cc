// The life of one large job, or its barriers, against a coordinator in a
// process of its own. Prints one line of JSON; times in seconds.

#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "tests/bench/scale/coordinator_process.h"
#include "tests/bench/scale/large_job.h"
#include "tests/bench/scale/process_usage.h"

namespace coxswain::bench {
namespace {

struct Options {
  std::string what;
  std::string folder;
  std::string coxswain = "coxswain";
  int workers = 100;
  int lose = 10;
  int rounds = 50;
  int beats = 10;
  size_t phases = 100;
  bool members = false;
};

std::string Json(const Phase& phase) {
  return absl::StrFormat(
      "{\"name\": \"%s\", \"workers\": %d, \"seconds\": %.6f, "
      "\"median\": %.6f, \"cpu\": %.6f, \"bytes\": %d, "
      "\"resident_kib\": %d}",
      phase.name, phase.workers, absl::ToDoubleSeconds(phase.took),
      absl::ToDoubleSeconds(phase.median), absl::ToDoubleSeconds(phase.cpu),
      phase.bytes, phase.resident_kib);
}

absl::StatusOr<CoordinatorProcess> StartProcess(const Options& options) {
  COXSWAIN_RETURN_IF_ERROR(RaiseDescriptorLimit(options.workers + 100));
  CoordinatorProcessOptions process;
  process.coxswain = options.coxswain;
  process.folder = options.folder;
  return StartCoordinatorProcess(process);
}

absl::Status Live(const Options& options) {
  COXSWAIN_ASSIGN_OR_RETURN(const CoordinatorProcess coordinator,
                            StartProcess(options));
  COXSWAIN_ASSIGN_OR_RETURN(const ProcessUsage before,
                            UsageOf(coordinator.pid));
  LargeJob job({coordinator, options.workers, options.lose});
  std::vector<std::string> phases;
  std::vector<std::function<absl::StatusOr<Phase>()>> life = {
      [&] { return job.Join(); },
      [&] { return job.Attach(); },
      [&] { return job.FormGroups(); },
      [&] { return job.ExchangeAddresses(); },
      [&] { return job.Heartbeats(options.beats); },
      [&] { return job.Barrier(); },
      [&] { return job.Lose(); },
      [&] { return job.FormAgain(); },
      [&] { return job.Attach(); },
  };
  if (options.members) {
    life.insert(life.begin() + 1, [&] { return job.AskForMembers(); });
  }
  for (size_t i = 0; i < life.size() && i < options.phases; ++i) {
    COXSWAIN_ASSIGN_OR_RETURN(const Phase phase, life[i]());
    phases.push_back(Json(phase));
  }
  std::cout << "{\"resident_kib\": " << before.resident_kib << ", \"phases\": ["
            << absl::StrJoin(phases, ", ") << "]}" << std::endl;
  return absl::OkStatus();
}

absl::Status TakeBarriers(const Options& options) {
  COXSWAIN_ASSIGN_OR_RETURN(const CoordinatorProcess coordinator,
                            StartProcess(options));
  LargeJob job({coordinator, options.workers, 0});
  COXSWAIN_RETURN_IF_ERROR(job.Join().status());
  COXSWAIN_RETURN_IF_ERROR(job.Attach().status());
  std::vector<std::string> times;
  for (int round = 0; round < options.rounds; ++round) {
    COXSWAIN_ASSIGN_OR_RETURN(const Phase phase, job.Barrier());
    times.push_back(absl::StrCat(absl::ToDoubleSeconds(phase.took)));
  }
  std::cout << "[" << absl::StrJoin(times, ", ") << "]" << std::endl;
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  SetLogLevel("warning");
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  if (options.what == "life") return Live(options);
  if (options.what == "barrier") return TakeBarriers(options);
  return absl::InvalidArgumentError(
      absl::StrCat("'", options.what, "' is neither life nor barrier"));
}

}  // namespace
}  // namespace coxswain::bench

int main(int argc, char** argv) {
  CLI::App app("Measures large jobs; see the head of main.cc");
  coxswain::bench::Options options;
  app.add_option("what", options.what, "life or barrier")->required();
  app.add_option("--folder", options.folder, "for the coordinator's state");
  app.add_option("--coxswain", options.coxswain, "the program to serve");
  app.add_flag("--members", options.members, "all ask for all members too");
  app.add_option("--workers", options.workers)->capture_default_str();
  app.add_option("--lose", options.lose)->capture_default_str();
  app.add_option("--rounds", options.rounds)->capture_default_str();
  app.add_option("--beats", options.beats)->capture_default_str();
  app.add_option("--phases", options.phases, "of the life; at most");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = coxswain::bench::Run(options);
  if (!status.ok()) {
    std::cerr << "scale worker: " << status.message() << std::endl;
  }
  // Thousands of connections need not be closed one by one.
  std::_Exit(status.ok() ? 0 : 1);
}
