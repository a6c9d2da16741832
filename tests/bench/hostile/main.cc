// How long the barriers of a small job take while another client attacks the
// coordinator, against how long they take without it, in turns. Prints a table.
// The coordinator is a process of its own; the job and the attack share this
// one, and all of them the machine's cores.

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "tests/bench/scale/coordinator_process.h"
#include "tests/bench/scale/large_job.h"
#include "tests/security/attack.h"

namespace coxswain::bench {
namespace {

struct Options {
  std::string coxswain = "coxswain";
  std::string folder = ".";
  int workers = 4;
  int barriers = 200;
  int turns = 5;
  int connections = 1000;
  std::string only;  // an attack; empty: all
};

using Times = std::vector<double>;  // seconds

absl::Status TakeBarriers(int count, LargeJob* job, Times* times) {
  for (int i = 0; i < count; ++i) {
    COXSWAIN_ASSIGN_OR_RETURN(const Phase phase, job->Barrier());
    times->push_back(absl::ToDoubleSeconds(phase.took));
  }
  return absl::OkStatus();
}

double Quantile(Times times, double part) {
  std::sort(times.begin(), times.end());
  return times[static_cast<size_t>(part *
                                   static_cast<double>(times.size() - 1))];
}

absl::Status Measure(AttackKind kind, const Options& options, int port,
                     LargeJob* job) {
  Times quiet;
  Times attacked;
  Attack::Count count;
  for (int turn = 0; turn < options.turns; ++turn) {
    COXSWAIN_RETURN_IF_ERROR(TakeBarriers(options.barriers, job, &quiet));
    const auto attack = Attack::Begin(kind, port, options.connections);
    COXSWAIN_RETURN_IF_ERROR(TakeBarriers(options.barriers, job, &attacked));
    const Attack::Count now = attack->count();
    count.connections += now.connections;
    count.calls += now.calls;
  }
  std::cout << absl::StrFormat("%-17s %8.3f %8.3f %6.2fx %8.3f %8.3f %11d %9d",
                               NameOf(kind), 1e3 * Quantile(quiet, 0.5),
                               1e3 * Quantile(attacked, 0.5),
                               Quantile(attacked, 0.5) / Quantile(quiet, 0.5),
                               1e3 * Quantile(quiet, 0.99),
                               1e3 * Quantile(attacked, 0.99),
                               count.connections, count.calls)
            << std::endl;
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  SetLogLevel("warning");
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  COXSWAIN_RETURN_IF_ERROR(
      bench::RaiseDescriptorLimit(options.connections + options.workers + 200));
  CoordinatorProcessOptions process;
  process.coxswain = options.coxswain;
  process.folder = options.folder;
  COXSWAIN_ASSIGN_OR_RETURN(const CoordinatorProcess coordinator,
                            StartCoordinatorProcess(process));
  LargeJob job({coordinator, options.workers, 0});
  COXSWAIN_RETURN_IF_ERROR(job.Join().status());
  COXSWAIN_RETURN_IF_ERROR(job.Attach().status());
  Times warm;
  COXSWAIN_RETURN_IF_ERROR(TakeBarriers(options.barriers, &job, &warm));
  std::cout << "                      median of a barrier, ms        99%, ms\n"
               "attack               quiet attacked   ratio    quiet attacked "
               "connections     calls"
            << std::endl;
  for (const AttackKind kind : AllAttacks()) {
    if (!options.only.empty() && options.only != NameOf(kind)) continue;
    COXSWAIN_RETURN_IF_ERROR(Measure(kind, options, coordinator.port, &job));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace coxswain::bench

int main(int argc, char** argv) {
  CLI::App app("Barriers of a job under attack; see the head of main.cc");
  coxswain::bench::Options options;
  app.add_option("--coxswain", options.coxswain, "the program to serve");
  app.add_option("--folder", options.folder, "for the coordinator's state");
  app.add_option("--workers", options.workers)->capture_default_str();
  app.add_option("--barriers", options.barriers, "of each turn")
      ->capture_default_str();
  app.add_option("--turns", options.turns)->capture_default_str();
  app.add_option("--connections", options.connections)->capture_default_str();
  app.add_option("--only", options.only, "one attack, by its name");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = coxswain::bench::Run(options);
  if (!status.ok()) std::cerr << "hostile: " << status.message() << std::endl;
  std::_Exit(status.ok() ? 0 : 1);
}
