#include "cli/serve.h"

#include <csignal>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "cli/address.h"
#include "cli/port_file.h"
#include "cli/signals.h"
#include "server/coordinator.h"

namespace coxswain {
namespace {

// Workers that are told to go need a moment to be told.
constexpr absl::Duration kShutdown = absl::Seconds(5);

}  // namespace

absl::Status Serve(const ServeOptions& options) {
  HeldSignals signals({SIGINT, SIGTERM});
  SetLogLevel(options.log_level);
  // gRPC's locks are Abseil's, and Debian builds those with a search for
  // deadlocks at every lock: an eighth of a round of 64 workers.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  COXSWAIN_ASSIGN_OR_RETURN(HostPort address,
                            ParseHostPort(options.listen, PortRule::kAnyFree));
  if (!IsLoopback(address.host)) {
    LogWarning("not_encrypted",
               {{"listen", options.listen},
                {"meaning",
                 "whoever reaches this address can read the traffic and join, "
                 "change or end jobs; use a network you trust"}});
  }

  server::CoordinatorOptions coordinator_options;
  coordinator_options.listen = options.listen;
  coordinator_options.state_dir = options.state_dir;
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::unique_ptr<server::Coordinator> coordinator,
      server::Coordinator::Start(coordinator_options));
  address.port = coordinator->port();
  if (!options.port_file.empty()) {
    COXSWAIN_RETURN_IF_ERROR(WritePortFile(options.port_file, address.port));
  }
  std::printf("coxswain: listening on %s\n", address.ToString().c_str());
  std::fflush(stdout);

  const int signal = signals.Wait();
  LogInfo("shutting_down", {{"signal", signal}});
  coordinator->Shutdown(kShutdown);
  return absl::OkStatus();
}

}  // namespace coxswain
