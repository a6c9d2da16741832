// The program `coxswain`: the coordinator, the launcher and the tools around
// them. Each command is in a file of its own.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/random.h"
#include "cli/checkpoint.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/logs.h"
#include "cli/status.h"
#include "cli/watch.h"
#include "client/rpc/connection_hint.h"
#include "client/rpc/stub_factory.h"
#include "grpc/support/log.h"

namespace coxswain {
namespace {

// Lives as long as gRPC's own threads.
LogRate& GrpcErrors() {
  static LogRate& errors = *new LogRate("grpc");
  return errors;
}

void LogOfGrpc(gpr_log_func_args* entry) {
  const LogFields fields = {
      {"text", entry->message}, {"file", entry->file}, {"line", entry->line}};
  if (entry->severity == GPR_LOG_SEVERITY_ERROR) {
    GrpcErrors().Line(absl::StrCat(entry->file, ":", entry->line), fields);
  } else if (entry->severity == GPR_LOG_SEVERITY_INFO) {
    LogInfo("grpc", fields);
  } else {
    LogDebug("grpc", fields);
  }
}

// Logs what gRPC logs as event "grpc", in the log's format; errors,
// which callers can cause as often as they like, once a minute for each
// place in gRPC.
void TakeGrpcLog() { gpr_set_log_function(LogOfGrpc); }

// Keeps gRPC's lines on each attempt to connect from the terminal: the error
// that a command ends with has what they say, unless gRPC's own variable asks
// for them.
void HideGrpcLog() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) {
    gpr_set_log_function([](gpr_log_func_args* /*entry*/) {});
  }
}

int Print(const std::string& text) {
  return std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0
             ? kExitFailure
             : kExitOk;
}

int Fail(const absl::Status& status, int exit_status) {
  if (GetLogFormat() == LogFormat::kJson) {
    const std::string line = FormatLogLine(
        LogFormat::kJson,
        {Clock::Real()->WallTime(),
         "error",
         "failed",
         {{"reason", status.message()}, {"exit_status", exit_status}}});
    std::fprintf(stderr, "%s\n", line.c_str());
    return exit_status;
  }
  std::fprintf(stderr, "coxswain: %s\n", std::string(status.message()).c_str());
  return exit_status;
}

int Exit(const absl::Status& status) {
  return status.ok() ? kExitOk : Fail(status, kExitFailure);
}

int PrintOrFail(const absl::StatusOr<std::string>& text) {
  return text.ok() ? Print(*text) : Fail(text.status(), kExitFailure);
}

// Ends a command that has asked the coordinator of its options.
template <typename Options>
int ExitOfQuery(const absl::Status& status, const Options& options) {
  return Exit(
      WithConnectionHint(status, options.coordinator, options.security));
}
template <typename Options>
int PrintAnswer(const absl::StatusOr<std::string>& text,
                const Options& options) {
  return text.ok() ? Print(*text) : ExitOfQuery(text.status(), options);
}

// Returns a stub of the coordinator that the command names.
template <typename Options>
std::shared_ptr<CoordinatorStub> StubOf(const Options& options) {
  return ConnectCoordinator(options.coordinator, RetryPolicy(),
                            options.security);
}

int ExitOfRun(const absl::StatusOr<int>& status) {
  if (status.ok()) return *status;
  if (absl::IsNotFound(status.status())) {
    return Fail(status.status(), kExitNotFound);
  }
  if (absl::IsPermissionDenied(status.status())) {
    return Fail(status.status(), kExitCannotExecute);
  }
  return Fail(status.status(), kExitFailure);
}

int Main(const std::vector<std::string>& args) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(args);
  if (!line.ok()) return Fail(line.status(), kExitUsage);
  using Command = CommandLine::Command;
  if (line->command != Command::kRun) HideGrpcLog();
  switch (line->command) {
    case Command::kPrint:
      return Print(line->text);
    case Command::kServe:
      TakeGrpcLog();
      return Exit(Serve(line->serve));
    case Command::kRun:
      if (line->run.log_format == "json") TakeGrpcLog();
      return ExitOfRun(Run(line->run));
    case Command::kStatus:
      return ExitOfQuery(line->status.watch ? WatchStatus(line->status)
                                            : ShowStatus(line->status),
                         line->status);
    case Command::kLogs:
      return ExitOfQuery(ShowLogs(line->logs), line->logs);
    case Command::kPlanShow:
      return PrintAnswer(ShowPlan(line->plan_show, *StubOf(line->plan_show)),
                         line->plan_show);
    case Command::kPlanSet:
      return PrintAnswer(SetPlan(line->plan_set, *StubOf(line->plan_set),
                                 RandomSource::System()),
                         line->plan_set);
    case Command::kPlanSchedule:
      return PrintOrFail(DescribeSchedule(line->plan_schedule));
    case Command::kPlanCheck:
      return PrintOrFail(CheckSchedule(line->plan_check));
    case Command::kPlanMemory:
      return PrintOrFail(DescribeMemory(line->plan_memory));
    case Command::kWhy:
      return PrintAnswer(ShowWhy(line->why, *StubOf(line->why)), line->why);
    case Command::kCheckpoint: {
      const auto stub = StubOf(line->checkpoint);
      return PrintAnswer(
          RunCheckpoint(line->checkpoint, RealCheckpointWorld(stub.get())),
          line->checkpoint);
    }
    case Command::kCerts:
      return PrintOrFail(RunCerts(line->certs, Clock::Real()->WallTime()));
    case Command::kHooks:
      return PrintOrFail(DescribeHooks(line->hooks));
    case Command::kVersion:
      return Print(VersionText());
  }
  return kExitFailure;
}

}  // namespace
}  // namespace coxswain

int main(int argc, char** argv) {
  try {
    return coxswain::Main(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {  // of a library
    std::fprintf(stderr, "coxswain: unexpected: %s\n", error.what());
    return coxswain::kExitFailure;
  }
}
