// The program `coxswain`: the coordinator, the launcher and the tools around
// them. Each command is in a file of its own.
#include <cstdio>
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
#include "cli/job_query.h"
#include "cli/logs.h"
#include "cli/status.h"
#include "cli/watch.h"
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

int PrintOrFail(const absl::StatusOr<std::string>& text,
                const ClientSecurity& security = {}) {
  return text.ok() ? Print(*text)
                   : Fail(HintAtTls(text.status(), security), kExitFailure);
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
  switch (line->command) {
    case CommandLine::Command::kPrint:
      return Print(line->text);
    case CommandLine::Command::kServe:
      TakeGrpcLog();
      return Exit(Serve(line->serve));
    case CommandLine::Command::kRun:
      if (line->run.log_format == "json") TakeGrpcLog();
      return ExitOfRun(Run(line->run));
    case CommandLine::Command::kStatus:
      return Exit(HintAtTls(line->status.watch ? WatchStatus(line->status)
                                               : ShowStatus(line->status),
                            line->status.security));
    case CommandLine::Command::kLogs:
      return Exit(HintAtTls(ShowLogs(line->logs), line->logs.security));
    case CommandLine::Command::kPlanShow:
      return PrintOrFail(ShowPlan(line->plan_show, *StubOf(line->plan_show)),
                         line->plan_show.security);
    case CommandLine::Command::kPlanSet:
      return PrintOrFail(SetPlan(line->plan_set, *StubOf(line->plan_set),
                                 RandomSource::System()),
                         line->plan_set.security);
    case CommandLine::Command::kWhy:
      return PrintOrFail(ShowWhy(line->why, *StubOf(line->why)),
                         line->why.security);
    case CommandLine::Command::kCheckpoint: {
      const auto stub = StubOf(line->checkpoint);
      return PrintOrFail(
          RunCheckpoint(line->checkpoint, RealCheckpointWorld(stub.get())),
          line->checkpoint.security);
    }
    case CommandLine::Command::kCerts:
      return PrintOrFail(RunCerts(line->certs, Clock::Real()->WallTime()));
    case CommandLine::Command::kHooks:
      return PrintOrFail(DescribeHooks(line->hooks));
    case CommandLine::Command::kVersion:
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
