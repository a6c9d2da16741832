#include "cli/commands.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/host_name.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "cli/address.h"
#include "cli/launch/signals.h"
#include "server/components/components.h"
#include "server/coordinator.h"
#include "server/http/health_server.h"
#include "server/http/http_server.h"
#include "server/http/site.h"
#include "server/open_state.h"
#include "transport/listen_address.h"

namespace coxswain {
namespace {

using server::OwnedState;
using HealthState = server::HealthServer::State;

// How long workers that are sent away have to receive that.
constexpr absl::Duration kShutdown = absl::Seconds(5);
// How long a coordinator that leads and could not start leaves others to try.
constexpr absl::Duration kStandBack = absl::Seconds(1);

void PrintLine(const std::string& line) {
  std::printf("coxswain: %s\n", line.c_str());
  std::fflush(stdout);
}

// Writes a port number and a newline to a file, atomically: a script may wait
// for the file, then read it.
absl::Status WritePortFile(const std::string& path, int port) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  FILE* const file = std::fopen(temporary.c_str(), "we");
  if (file == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", temporary));
  }
  bool written = std::fprintf(file, "%d\n", port) > 0;
  written = std::fclose(file) == 0 && written;
  if (!written || std::rename(temporary.c_str(), path.c_str()) != 0) {
    absl::Status status =
        absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
    unlink(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

// Each connection needs a descriptor; many systems allow a process 1,024 by
// default.
void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

absl::StatusOr<server::StateLocation> LocationOf(const ServeOptions& options) {
  if (!options.state.empty()) return server::ParseStateLocation(options.state);
  server::StateLocation location;
  location.folder = options.state_dir;
  return location;
}

// Returns the name under which the other coordinators see this one.
std::string NameOf(const ServeOptions& options) {
  const std::string host = HostName();
  return absl::StrCat(options.listen, " (host ", host.empty() ? "?" : host,
                      ", process ", getpid(), ")");
}

// Returns once one of them is raised.
void WaitForEither(CancelSignal* first, CancelSignal* second) {
  struct Raised {
    Mutex mutex;
    CondVar changed;
    bool raised ABSL_GUARDED_BY(mutex) = false;
  };
  const auto state = std::make_shared<Raised>();
  const auto note = [state] {
    MutexLock lock(&state->mutex);
    state->raised = true;
    state->changed.NotifyAll();
  };
  const uint64_t first_id = first->OnRaise(note);
  const uint64_t second_id = second->OnRaise(note);
  {
    MutexLock lock(&state->mutex);
    // A service waits for as long as it runs.
    state->changed.WaitForWork(
        &state->mutex,
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return state->raised; });
  }
  first->Forget(first_id);
  second->Forget(second_id);
}

// One `coxswain serve`.
class Service {
 public:
  Service(const ServeOptions& options, const HostPort& address,
          server::StateLocation location, CancelSignal* stop)
      : options_(options),
        address_(address),
        location_(std::move(location)),
        stop_(stop),
        site_(options.security.insecure) {
    coordinator_.count_calls = !options.http.empty();
    coordinator_.listen = options.listen;
    coordinator_.state_dir = options.state_dir;
    coordinator_.repair_state = options.repair_state;
    coordinator_.security = options.security.rpc;
    coordinator_.membership = options.membership;
    coordinator_.rpc.max_held_bytes = int64_t{options.max_held_mib} << 20;
    coordinator_.checkpoint_retention.keep_last = options.checkpoint_keep_last;
    coordinator_.checkpoint_retention.keep_every =
        options.checkpoint_keep_every;
  }

  absl::Status Run() {
    COXSWAIN_RETURN_IF_ERROR(coordinator_.Validate());
    COXSWAIN_RETURN_IF_ERROR(StartHealth());
    COXSWAIN_RETURN_IF_ERROR(StartHttp());
    if (location_.is_etcd()) COXSWAIN_RETURN_IF_ERROR(TryToListen());
    while (stop_->status().ok()) {
      auto state = Acquire();
      if (!stop_->status().ok()) break;
      COXSWAIN_RETURN_IF_ERROR(state.status());
      COXSWAIN_RETURN_IF_ERROR(Lead(*std::move(state)));
    }
    return absl::OkStatus();
  }

 private:
  // Before it leads: a coordinator that stands by is alive.
  absl::Status StartHealth() {
    const std::string& listen = options_.security.health_listen;
    if (listen.empty()) return absl::OkStatus();
    COXSWAIN_ASSIGN_OR_RETURN(health_, server::HealthServer::Start(listen));
    LogInfo("health_listening",
            {{"listen", listen}, {"port", health_->port()}});
    return absl::OkStatus();
  }
  // Before it leads, as StartHealth.
  absl::Status StartHttp() {
    if (options_.http.empty()) return absl::OkStatus();
    server::HttpOptions http;
    http.listen = options_.http;
    http.insecure = options_.security.insecure;
    http.hosts = options_.http_hosts;
    COXSWAIN_ASSIGN_OR_RETURN(
        http_, server::HttpServer::Start(
                   http, [this](const server::HttpRequest& request) {
                     return site_.Answer(request);
                   }));
    COXSWAIN_ASSIGN_OR_RETURN(HostPort address,
                              ParseHostPort(options_.http, PortRule::kAnyFree));
    address.port = http_->port();
    PrintLine(absl::StrCat("serving http://", address.ToString(), "/"));
    if (options_.http_port_file.empty()) return absl::OkStatus();
    return WritePortFile(options_.http_port_file, address.port);
  }
  void SetHealth(HealthState state) {
    if (health_ != nullptr) health_->Set(state);
  }

  // Fails now if the port could not be bound once this coordinator leads.
  absl::Status TryToListen() const {
    COXSWAIN_ASSIGN_OR_RETURN(const auto address,
                              ParseListenAddress(options_.listen));
    return Listen(address).status();
  }

  absl::StatusOr<std::unique_ptr<OwnedState>> Acquire() {
    server::AcquireOptions acquire;
    acquire.name = NameOf(options_);
    acquire.leader_lease = options_.leader_lease;
    acquire.cancel = stop_;
    acquire.on_wait = [this](const std::string& leader,
                             const absl::Status& why) {
      // Before the line is printed: its reader may probe at once.
      SetHealth(leader.empty() ? HealthState::kNeither
                               : HealthState::kStandsBy);
      if (leader.empty()) {
        LogWarning("state_not_reached", {{"reason", why.message()}});
      } else {
        LogInfo("standing_by", {{"leader", leader}});
        PrintLine(absl::StrCat("standing by for ", leader));
      }
    };
    return server::AcquireState(location_, acquire);
  }

  // Serves until this coordinator is stopped, or has lost the lead; OK then.
  absl::Status Lead(std::shared_ptr<OwnedState> state) {
    // A coordinator that leads and cannot start serves no caller.
    SetHealth(HealthState::kNeither);
    coordinator_.state = state;
    auto coordinator = server::Coordinator::Start(coordinator_);
    coordinator_.state.reset();
    const bool lost = !state->lost().status().ok();
    if (!coordinator.ok() && !lost) {
      state.reset();
      return NotStarted(coordinator.status());
    }
    if (coordinator.ok())
      COXSWAIN_RETURN_IF_ERROR(Serve(**coordinator, *state));
    if (!state->lost().status().ok()) {
      LogWarning("leads_no_more",
                 {{"reason", state->lost().status().message()}});
    }
    return absl::OkStatus();
  }

  // Returns OK, to stand by again, if the error may be temporary.
  absl::Status NotStarted(const absl::Status& why) {
    if (!location_.is_etcd() || !absl::IsUnavailable(why)) return why;
    LogWarning("lead_given_up",
               {{"reason", why.message()}, {"next", "it stands by again"}});
    stop_->WaitFor(kStandBack);
    return absl::OkStatus();
  }

  absl::Status Serve(server::Coordinator& coordinator, OwnedState& state) {
    address_.port = coordinator.port();
    coordinator_.listen = address_.ToString();  // The same port next time.
    if (!options_.port_file.empty()) {
      COXSWAIN_RETURN_IF_ERROR(
          WritePortFile(options_.port_file, address_.port));
    }
    SetHealth(HealthState::kLeads);
    site_.Show(coordinator.view());
    PrintLine(absl::StrCat("listening on ", address_.ToString()));
    WaitForEither(stop_, &state.lost());
    site_.Hide();
    SetHealth(HealthState::kNeither);
    if (!state.lost().status().ok()) {
      coordinator.Abandon();
    } else {
      LogInfo("shutting_down", {{"reason", stop_->status().message()}});
      coordinator.Shutdown(kShutdown);
    }
    return absl::OkStatus();
  }

  const ServeOptions options_;
  HostPort address_;
  const server::StateLocation location_;
  CancelSignal* const stop_;
  server::CoordinatorOptions coordinator_;
  std::unique_ptr<server::HealthServer> health_;
  server::Site site_;
  // Destroyed first: its requests use the site.
  std::unique_ptr<server::HttpServer> http_;
};

}  // namespace

absl::Status Serve(const ServeOptions& options) {
  HeldSignals signals({SIGINT, SIGTERM});
  // As the entry point of a container this process inherits orphans, but starts
  // no processes itself: the kernel collects all that end.
  std::signal(SIGCHLD, SIG_IGN);
  SetLogLevel(options.log_level);
  SetLogFormat(options.log_format);
  RaiseDescriptorLimit();
  // gRPC's locks are Abseil's, and Debian builds those with a search for
  // deadlocks at every lock: an eighth of a round of 64 workers.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  COXSWAIN_ASSIGN_OR_RETURN(const HostPort address,
                            ParseHostPort(options.listen, PortRule::kAnyFree));
  COXSWAIN_ASSIGN_OR_RETURN(auto location, LocationOf(options));
  const server::SecurityOptions& rpc = options.security.rpc;
  if (!IsLoopback(address.host)) {
    if (!rpc.encrypts()) {
      LogWarning("not_encrypted",
                 {{"listen", options.listen},
                  {"meaning",
                   "--insecure: any program that reaches this address can read "
                   "the traffic, stop the coordinator, and without --tokens "
                   "join, change or end jobs"}});
    } else if (rpc.tls.ca.empty() || !rpc.tokens.empty()) {
      LogWarning("certificates_not_required",
                 {{"listen", options.listen},
                  {"meaning",
                   "--insecure: any program that reaches this address can stop "
                   "the coordinator (docs/security.md)"}});
    }
  }
  COXSWAIN_ASSIGN_OR_RETURN(const auto watch, StopWatch::Start(signals));
  return Service(options, address, std::move(location), &watch->stop()).Run();
}

}  // namespace coxswain
