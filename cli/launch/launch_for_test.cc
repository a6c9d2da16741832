// The launcher alone, for its tests: no coordinator, and exits are reported
// to stderr as "reported SLOT STATUS of INCARNATION".
//
//   launch_for_test NPROC[:RESTARTS] EXIT_GRACE STOP_GRACE[:STATUS] PREFIX
//                   PROGRAM [ARGUMENTS...]
//
// With RESTARTS, which may be 0, the job is elastic. STATUS is that of a launch
// that was asked to stop. Orphans of the workers become children of this
// process, as they do of the entry point of a container.
#include <sys/prctl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/time/time.h"
#include "cli/launch/launcher.h"
#include "cli/launch/signals.h"

int main(int argc, char** argv) {
  if (argc < 6 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return 2;
  coxswain::HeldSignals signals(coxswain::kLauncherSignals);
  coxswain::LaunchOptions options;
  options.environment.coordinator = "nowhere:1";
  options.environment.job = "test";
  options.environment.node = "here";
  options.environment.nproc = std::atoi(argv[1]);
  options.environment.world_size = std::atoi(argv[1]);
  if (const char* colon = std::strchr(argv[1], ':'); colon != nullptr) {
    options.restarts.elastic = true;
    options.restarts.most = std::atoi(colon + 1);
  }
  options.prefix = std::string(argv[4]) == "prefix";
  options.inherited = {"PATH=/usr/bin:/bin"};
  options.program.assign(argv + 5, argv + argc);
  std::string stop = argv[3];
  if (const size_t colon = stop.find(':'); colon != std::string::npos) {
    options.stop_status = std::atoi(stop.c_str() + colon + 1);
    stop.resize(colon);
  }
  if (!absl::ParseDuration(argv[2], &options.graces.exit) ||
      !absl::ParseDuration(stop, &options.graces.stop)) {
    return 2;
  }
  const auto status = coxswain::Launch(
      options, signals,
      [](const coxswain::WorkerExit& exit, uint64_t incarnation) {
        std::fprintf(stderr, "reported %d %d of %llu\n", exit.slot,
                     exit.Status(),
                     static_cast<unsigned long long>(incarnation));
      });
  if (status.ok()) return *status;
  std::fprintf(stderr, "%s\n", status.status().ToString().c_str());
  return 125;
}
