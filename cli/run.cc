#include "cli/commands.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/host_name.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "cli/launch/exit_reporter.h"
#include "cli/launch/failure_report.h"
#include "cli/launch/launcher.h"
#include "cli/launch/signals.h"
#include "client/device/selection.h"
#include "client/rpc/stub_factory.h"
#include "server/coordinator.h"

namespace coxswain {
namespace {

constexpr char kPrivateJob[] = "standalone";
// How long the launcher waits, after the last worker has ended, for reports
// that the coordinator has not answered: the default lease, after which the
// coordinator notices by itself.
constexpr absl::Duration kReportDrain = absl::Seconds(10);

constexpr char kHost[] = "127.0.0.1";
constexpr absl::Duration kShutdownOfRun = absl::Seconds(2);

// A coordinator for one launcher: in its process, reachable from this machine
// only, with its state in a temporary folder that the destructor removes.
class PrivateCoordinator {
 public:
  static absl::StatusOr<std::unique_ptr<PrivateCoordinator>> Start();
  ~PrivateCoordinator();
  PrivateCoordinator(const PrivateCoordinator&) = delete;
  PrivateCoordinator& operator=(const PrivateCoordinator&) = delete;

  std::string address() const;

 private:
  explicit PrivateCoordinator(std::string state_dir)
      : state_dir_(std::move(state_dir)) {}

  const std::string state_dir_;
  std::unique_ptr<server::Coordinator> coordinator_;
};

absl::StatusOr<std::unique_ptr<PrivateCoordinator>>
PrivateCoordinator::Start() {
  std::error_code error;
  const auto parent = std::filesystem::temp_directory_path(error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("no folder for temporary files: ", error.message()));
  }
  std::string folder = (parent / "coxswain-standalone-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot make the folder ", folder));
  }
  std::unique_ptr<PrivateCoordinator> result(new PrivateCoordinator(folder));
  server::CoordinatorOptions options;
  options.listen = absl::StrCat(kHost, ":0");
  options.state_dir = folder;
  COXSWAIN_ASSIGN_OR_RETURN(result->coordinator_,
                            server::Coordinator::Start(options));
  return result;
}

PrivateCoordinator::~PrivateCoordinator() {
  if (coordinator_ != nullptr) coordinator_->Shutdown(kShutdownOfRun);
  coordinator_.reset();
  std::error_code ignored;  // it is in the folder for temporary files
  std::filesystem::remove_all(state_dir_, ignored);
}

std::string PrivateCoordinator::address() const {
  return absl::StrCat(kHost, ":", coordinator_->port());
}

absl::StatusOr<std::string> NodeName() {
  std::string name = HostName();
  if (name.empty()) {
    return absl::UnavailableError("this host has no name; give --node NAME");
  }
  return name;
}

std::vector<std::string> InheritedEnvironment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  return variables;
}

// Returns which worker uses which GPU; nothing if --gpus was not given.
absl::StatusOr<std::optional<GpuAssignment>> ChooseGpus(
    const RunOptions& options) {
  if (options.gpus.empty()) return std::nullopt;
  COXSWAIN_ASSIGN_OR_RETURN(const GpuRequest request,
                            ParseGpuRequest(options.gpus));
  std::optional<std::string> visible;
  const char* const inherited = std::getenv("CUDA_VISIBLE_DEVICES");
  if (inherited != nullptr) visible = inherited;
  COXSWAIN_ASSIGN_OR_RETURN(
      GpuAssignment gpus,
      AssignGpus(request, CountHostGpus(), visible, options.nproc));
  return gpus;
}

// Returns the folder for PYTHONPATH whose sitecustomize.py follows what torch
// exchanges.
absl::StatusOr<std::string> FollowFolder() {
  std::error_code error;
  std::filesystem::path package;
  const char* const given = std::getenv("COXSWAIN_PYTHON_PACKAGE");
  if (given != nullptr && given[0] != '\0') {
    package = given;
  } else {
    // A wheel has this program in coxswain/_native.
    package = std::filesystem::read_symlink("/proc/self/exe", error)
                  .parent_path()
                  .parent_path();
  }
  const std::filesystem::path folder = package / "_follow";
  if (std::filesystem::exists(folder / "sitecustomize.py", error)) {
    return std::filesystem::absolute(folder, error).string();
  }
  return absl::NotFoundError(absl::StrCat(
      "--follow needs the Python package, and there is no ", folder.string(),
      "/sitecustomize.py: install the wheel and use its coxswain, or set "
      "COXSWAIN_PYTHON_PACKAGE to the folder of the package coxswain"));
}

v1::ReportExitRequest Report(const WorkerEnvironment& environment,
                             const WorkerExit& exit, uint64_t incarnation) {
  v1::ReportExitRequest request;
  request.set_job(environment.job);
  request.set_launcher_id(environment.launcher_id);
  request.mutable_identity()->set_node(environment.node);
  request.mutable_identity()->set_slot(exit.slot);
  request.set_incarnation(incarnation);
  request.set_exit_code(exit.exit_code);
  request.set_signal(exit.signal);
  return request;
}

// Keeps the failure of each slot that no later process of it has made up for.
void NoteEnd(const WorkerExit& exit, uint64_t incarnation,
             std::vector<WorkerFailure>* failures) {
  failures->erase(std::remove_if(failures->begin(), failures->end(),
                                 [&](const WorkerFailure& earlier) {
                                   return earlier.exit.slot == exit.slot;
                                 }),
                  failures->end());
  if (!exit.ok()) failures->push_back({exit, incarnation, {}});
}

// A reader of stderr that has stalled does not hold up the end.
void PrintFailures(const LaunchOptions& launch,
                   const std::vector<WorkerFailure>& failures) {
  for (const std::string& text :
       DescribeFailures(launch.environment.node, failures)) {
    pollfd ready = {STDERR_FILENO, POLLOUT, 0};
    if (poll(&ready, 1, 0) != 1) return;
    std::fputs(LauncherLine(launch, text).c_str(), stderr);
  }
}

}  // namespace

absl::StatusOr<int> Run(const RunOptions& options) {
  HeldSignals signals(kLauncherSignals);
  SetLogLevel(options.log_level);
  SetLogFormat(options.log_format);

  LaunchOptions launch;
  launch.program = options.program;
  launch.inherited = InheritedEnvironment();
  launch.prefix = options.prefix;
  launch.graces = {options.exit_grace, options.stop_grace};
  launch.restarts.elastic = options.MinWorkers() < options.MaxWorkers();
  launch.restarts.most = options.max_restarts;
  launch.stop_status = options.stop_status;
  WorkerEnvironment& environment = launch.environment;
  environment.coordinator = options.coordinator;
  // A private coordinator is in this process, and uses plain text.
  if (!options.coordinator.empty()) environment.security = options.security;
  environment.job = options.job.empty() ? kPrivateJob : options.job;
  environment.node = options.node;
  environment.nproc = options.nproc;
  environment.world_size = options.MaxWorkers();
  environment.min_world_size = options.MinWorkers();
  environment.attempt = options.attempt;
  environment.topology = options.topology;
  environment.mesh = options.mesh;
  environment.launcher_id = launch.random->NextId();
  environment.backend = options.backend;
  environment.plain_data = options.plain_data;
  environment.bind_address = options.bind_address;
  environment.trace = options.trace;
  environment.log_level = options.log_level;
  environment.log_format = options.log_format;
  environment.plan = absl::StrJoin(options.plan, " ");
  environment.join_timeout = options.join_timeout;
  environment.reattach_grace = options.reattach_grace;
  if (options.follow) {
    COXSWAIN_ASSIGN_OR_RETURN(environment.python_path, FollowFolder());
  }
  COXSWAIN_ASSIGN_OR_RETURN(environment.gpus, ChooseGpus(options));
  if (environment.node.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(environment.node, NodeName());
  }

  std::unique_ptr<PrivateCoordinator> coordinator;
  if (environment.coordinator.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(coordinator, PrivateCoordinator::Start());
    environment.coordinator = coordinator->address();
  }

  ExitReporter reporter(
      ConnectWithoutRetries(environment.coordinator, environment.security));
  std::vector<WorkerFailure> failures;
  COXSWAIN_ASSIGN_OR_RETURN(
      const int status,
      Launch(launch, signals,
             [&](const WorkerExit& exit, uint64_t incarnation) {
               reporter.Report(Report(environment, exit, incarnation));
               NoteEnd(exit, incarnation, &failures);
             }));
  if (!reporter.Drain(kReportDrain)) {
    LogWarning("exits_not_reported",
               {{"coordinator", environment.coordinator},
                {"meaning",
                 "the coordinator did not answer in time, and notices the "
                 "workers' ends when their leases expire"}});
  }
  if (status != 0) {
    for (WorkerFailure& failure : failures) {
      failure.answer = reporter.AnswerOf(failure.exit.slot);
    }
    PrintFailures(launch, failures);
  }
  return status;
}

}  // namespace coxswain
