#ifndef COXSWAIN_CLI_COMMAND_LINE_H_
#define COXSWAIN_CLI_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/options.h"

namespace coxswain {

// Exit statuses of the program. `run` also returns those of the workers.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitCannotExecute = 126;
inline constexpr int kExitNotFound = 127;

// What the command line asks for.
struct CommandLine {
  enum class Command {
    kPrint,
    kServe,
    kRun,
    kStatus,
    kLogs,
    kPlanShow,
    kPlanSet,
    kPlanSchedule,
    kPlanCheck,
    kPlanMemory,
    kWhy,
    kCheckpoint,
    kCerts,
    kHooks,
    kVersion
  };
  Command command = Command::kPrint;
  std::string text;  // of kPrint: the help that was asked for
  ServeOptions serve;
  RunOptions run;
  StatusOptions status;
  LogsOptions logs;
  JobOptions plan_show;
  PlanSetOptions plan_set;
  PlanScheduleOptions plan_schedule;
  PlanCheckOptions plan_check;
  PlanMemoryOptions plan_memory;
  JobOptions why;
  CheckpointOptions checkpoint;
  CertsOptions certs;
  HooksOptions hooks;
};

// Reads arguments (without the program's name), the environment, and the
// configuration file; a flag wins over a variable, a variable over the file.
// Fails with INVALID_ARGUMENT, naming what is wrong and the help to read.
absl::StatusOr<CommandLine> ParseCommandLine(std::vector<std::string> args);

// Returns what is wrong with a command's options together, for
// ParseCommandLine; empty if nothing is. Fills in nproc, the plan and a job's
// name that was given before the changes.
std::string CheckCombination(CommandLine& line);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_COMMAND_LINE_H_
