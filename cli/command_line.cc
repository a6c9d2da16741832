#include "cli/command_line.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>
#include <utility>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/nearest_word.h"
#include "schedule/terms.h"

namespace coxswain {
namespace {

constexpr char kConfigVariable[] = "COXSWAIN_CONFIG";

constexpr char kRunExits[] =
    "Exit status: 0 if all workers succeed; otherwise that of the first "
    "worker\n"
    "that failed, 128 + N if signal N ended it. 2 for a wrong command line, "
    "126\n"
    "or 127 if PROGRAM cannot be executed or found, 1 for other failures.\n"
    "--stop-status instead of 0 after a request to stop.\n\n"
    "SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are forwarded to the "
    "workers.\n"
    "SIGINT, SIGTERM and SIGHUP are requests to stop: workers that still run\n"
    "after --stop-grace, or at a second SIGINT, are killed.\n";
constexpr char kOtherExits[] =
    "Exit status: 0 success, 1 failure, 2 wrong command line.\n";

bool IsSetInEnvironment(const std::string& name) {
  const char* value = name.empty() ? nullptr : std::getenv(name.c_str());
  return value != nullptr && *value != '\0';
}

// Leaves out of a configuration file what the environment sets: CLI11 reads
// the file first and would prefer it. Collects the names that are no options.
class ConfigBelowEnvironment : public CLI::ConfigTOML {
 public:
  explicit ConfigBelowEnvironment(const CLI::App* root) : root_(root) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> kept;
    for (CLI::ConfigItem& item : CLI::ConfigTOML::from_config(input)) {
      if (item.name == "++" || item.name == "--") continue;  // section marks
      const CLI::Option* option = Find(item);
      if (option == nullptr) {
        unknown_.push_back(item.fullname());
      } else if (!IsSetInEnvironment(option->get_envname())) {
        kept.push_back(std::move(item));
      }
    }
    return kept;
  }

  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  const CLI::Option* Find(const CLI::ConfigItem& item) const {
    const CLI::App* command = root_;
    for (const std::string& name : item.parents) {
      const auto found = command->get_subcommands(
          [&](const CLI::App* one) { return one->get_name() == name; });
      if (found.empty()) return nullptr;
      command = found.front();
    }
    if (command == root_) return nullptr;
    return command->get_option_no_throw("--" + item.name);
  }

  const CLI::App* const root_;
  mutable std::vector<std::string> unknown_;
};

CLI::App* AddCommand(CLI::App* parent, const std::string& name,
                     const std::string& description, const std::string& exits) {
  CLI::App* command = parent->add_subcommand(name, description);
  const std::string section =
      parent->get_parent() == nullptr ? name : parent->get_name() + "." + name;
  command->get_formatter()->column_width(36);
  command->footer(absl::StrCat(
      "\nEvery option can be given in three ways:\n"
      "  as a flag               --option VALUE\n"
      "  in the environment      COXSWAIN_OPTION=VALUE, as shown above\n"
      "  in a configuration file option = \"VALUE\" under [",
      section,
      "] in the TOML file\n"
      "                          that --config FILE or ",
      kConfigVariable,
      " names\n"
      "A flag wins over the environment, the environment over the file.\n\n",
      exits));
  return command;
}

// Returns the names that `plan set` takes, from the table of terms.
std::string PlanNames() {
  std::string text =
      "\nCHANGE names what to change, and its value; the rest stays:\n"
      "  accumulation=N          micro-batches of a step\n"
      "  hook=SPEC               a hook spec, or @FILE: see `coxswain hooks`\n"
      "  compression_start=STEP  when the hook begins to compress; -1: its "
      "own\n"
      "                          start_step\n"
      "  at=next|generation|STEP where the change begins: by default with the\n"
      "                          next step of a job that runs\n";
  for (const schedule::SettingInfo& setting : schedule::SettingList()) {
    absl::StrAppend(&text, "  ", setting.name, "=", setting.values, "\n",
                    std::string(26, ' '), setting.meaning, "\n");
  }
  return text;
}

void AddPlanCommands(CLI::App* root, CommandLine* line) {
  CLI::App* plan = root->add_subcommand(
      "plan",
      "Show or change the plan of a job, draw and check schedules of "
      "pipelines, or count what ranks need.");
  plan->require_subcommand(1);
  AddOptions(AddCommand(plan, "show",
                        "Show the plan of a job, and the next one:\n"
                        "coxswain plan show [JOB] [OPTIONS]",
                        kOtherExits),
             &line->plan_show);
  AddOptions(AddCommand(plan, "set",
                        "Change the plan of a job, also while it runs:\n"
                        "coxswain plan set [JOB] CHANGE... [OPTIONS]",
                        PlanNames() + "\n" + kOtherExits),
             &line->plan_set);
  AddOptions(
      AddCommand(plan, "schedule",
                 "Draw the schedule of a pipeline, prove that it comes "
                 "to its end, and show its\nbubble and what ranks hold:\n"
                 "coxswain plan schedule --ranks N --accumulation N "
                 "[OPTIONS]",
                 kOtherExits),
      &line->plan_schedule);
  AddOptions(AddCommand(plan, "check",
                        "Check a schedule of torch.distributed.pipelining, or "
                        "of another's making:\n"
                        "coxswain plan check FILE [OPTIONS]",
                        kOtherExits),
             &line->plan_check);
  AddOptions(AddCommand(plan, "memory",
                        "Count the memory that each rank needs to train a "
                        "model:\n"
                        "coxswain plan memory MODEL [OPTIONS]",
                        kOtherExits),
             &line->plan_memory);
}

struct CheckpointCommand {
  CheckpointOptions::Action action;
  const char* name;
  const char* description;
};

constexpr CheckpointCommand kCheckpointCommands[] = {
    {CheckpointOptions::Action::kList, "list",
     "List the checkpoints of a job, the newest first."},
    {CheckpointOptions::Action::kShow, "show",
     "Show one, with its shards:\n"
     "coxswain checkpoint show [ID|STEP|newest] [OPTIONS]"},
    {CheckpointOptions::Action::kNow, "now",
     "Ask a running job to save after one of its next steps."},
    {CheckpointOptions::Action::kVerify, "verify",
     "Have the coordinator read one and compare it with its checksums:\n"
     "coxswain checkpoint verify [ID|STEP|newest] [OPTIONS]"},
    {CheckpointOptions::Action::kExport, "export",
     "Write one to a folder, verified:\n"
     "coxswain checkpoint export [ID|STEP|newest] [--to FOLDER] [OPTIONS]"},
    {CheckpointOptions::Action::kImport, "import",
     "Verify an exported one and upload it; the job need not run:\n"
     "coxswain checkpoint import FOLDER [OPTIONS]"},
    {CheckpointOptions::Action::kDelete, "delete",
     "Delete one for good:\n"
     "coxswain checkpoint delete ID|STEP|newest [--yes] [OPTIONS]"}};

void AddCheckpointCommands(CLI::App* root, CommandLine* line) {
  CLI::App* checkpoint = root->add_subcommand(
      "checkpoint", "List, save, move, verify or delete checkpoints of a job.");
  checkpoint->require_subcommand(1);
  for (const CheckpointCommand& command : kCheckpointCommands) {
    CLI::App* app =
        AddCommand(checkpoint, command.name, command.description, kOtherExits);
    AddOptions(app, command.action, &line->checkpoint);
    app->callback(
        [line, action = command.action] { line->checkpoint.action = action; });
  }
}

void AddCertsCommands(CLI::App* root, CommandLine* line) {
  using Action = CertsOptions::Action;
  CLI::App* certs = root->add_subcommand(
      "certs", "Make certificates for a coordinator and its jobs.");
  certs->require_subcommand(1);
  const auto add = [&](Action action, const std::string& name,
                       const std::string& description) {
    CLI::App* app = AddCommand(certs, name, description, kOtherExits);
    AddCertsOptions(app, action, &line->certs);
    app->callback([line, action] { line->certs.action = action; });
  };
  add(Action::kInit, "init",
      "Make a certificate authority, and certificates for the coordinator,\n"
      "an operator and each --job.");
  add(Action::kAdd, "add", "Make certificates for further jobs.");
  add(Action::kShow, "show", "List certificates, and when they expire.");
}

// Returns "plan set", for example; empty if no command was found.
std::string NameOfParsed(const CLI::App& root) {
  std::string name;
  for (const CLI::App* app = &root; !app->get_subcommands().empty();) {
    app = app->get_subcommands().front();
    absl::StrAppend(&name, name.empty() ? "" : " ", app->get_name());
  }
  return name;
}

// Returns the long options of a command, and those that all commands have.
std::vector<std::string> Flags(const CLI::App& command, const CLI::App& root) {
  std::vector<std::string> flags;
  for (const CLI::App* app : {&command, &root}) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        flags.push_back("--" + name);
      }
    }
  }
  return flags;
}

std::vector<std::string> Commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  return names;
}

const CLI::App& LastParsed(const CLI::App& root) {
  const CLI::App* app = &root;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return *app;
}

// Returns which option was meant by the first of these that looks like one.
std::string FlagMeant(const std::vector<std::string>& unexpected,
                      const CLI::App& root) {
  for (const std::string& word : unexpected) {
    if (!absl::StartsWith(word, "--")) continue;
    return DidYouMean(word.substr(0, word.find('=')),
                      Flags(LastParsed(root), root));
  }
  return "";
}

// Returns how many of the arguments, from `from` on, are options of `command`,
// or of all commands, with their values.
size_t CountOptions(const std::vector<std::string>& args, size_t from,
                    const CLI::App& command, const CLI::App& root) {
  size_t at = from;
  while (at < args.size() && absl::StartsWith(args[at], "-")) {
    const std::string name = args[at].substr(0, args[at].find('='));
    const CLI::Option* option = command.get_option_no_throw(name);
    if (option == nullptr) option = root.get_option_no_throw(name);
    const bool takes_next = option != nullptr && name == args[at] &&
                            option->get_items_expected_max() > 0;
    at += takes_next ? 2 : 1;
  }
  return std::min(at, args.size()) - from;
}

// Returns where the program of `run` begins that is not behind a "--", as with
// torchrun: at the first argument that is neither an option nor the value of
// one. The number of arguments if there is none.
size_t FindProgram(const std::vector<std::string>& args, const CLI::App& run,
                   const CLI::App& root) {
  const size_t command = CountOptions(args, 0, root, root);
  if (command >= args.size() || args[command] != run.get_name()) {
    return args.size();
  }
  return command + 1 + CountOptions(args, command + 1, run, root);
}

absl::Status UsageError(const std::string& command, absl::string_view message) {
  const std::string name =
      command.empty() ? "coxswain" : absl::StrCat("coxswain ", command);
  return absl::InvalidArgumentError(absl::StrCat(
      absl::StripSuffix(message, "\n"), "\nTry `", name, " --help`."));
}

// Uses CLI11, whose exceptions the caller catches.
absl::StatusOr<CommandLine> Parse(std::vector<std::string> args) {
  CommandLine line;
  CLI::App root("Coxswain coordinates data-parallel training.", "coxswain");
  root.fallthrough();
  root.require_subcommand(1);
  root.set_config("--config", "", "read options from this TOML file")
      ->type_name("FILE");
  bool version = false;
  root.add_flag("--version", version, "print the version");
  AddOptions(AddCommand(&root, "serve", "Run the coordinator.", kOtherExits),
             &line.serve);
  CLI::App* run = AddCommand(
      &root, "run",
      "Start the workers of a job on this node, and wait until they end:\n"
      "coxswain run [OPTIONS] [--] PROGRAM [ARGUMENTS...]",
      kRunExits);
  AddOptions(run, &line.run);
  AddOptions(AddCommand(&root, "status", "Show the jobs of a coordinator.",
                        kOtherExits),
             &line.status);
  AddOptions(AddCommand(&root, "logs",
                        "Show what happened to a job, or to all jobs:\n"
                        "coxswain logs [JOB] [OPTIONS]",
                        kOtherExits),
             &line.logs);
  AddPlanCommands(&root, &line);
  AddCheckpointCommands(&root, &line);
  AddCertsCommands(&root, &line);
  AddOptions(AddCommand(&root, "why",
                        "Show where each rank of a job is, which ranks differ "
                        "or are behind, and why\nthe job ended:\n"
                        "coxswain why [JOB] [OPTIONS]",
                        kOtherExits),
             &line.why);
  AddOptions(AddCommand(&root, "hooks",
                        "List the communication hooks with their options and "
                        "costs.",
                        kOtherExits),
             &line.hooks);
  root.add_subcommand("version", "Print versions.");
  root.footer(absl::StrCat(
      "\nOptions also come from COXSWAIN_* variables and from the file of "
      "--config (or ",
      kConfigVariable, "):\nsee `coxswain COMMAND --help`.\n"));

  const auto config = std::make_shared<ConfigBelowEnvironment>(&root);
  root.config_formatter(config);

  // What follows -- is passed to the program as it is.
  auto dashes = std::find(args.begin(), args.end(), "--");
  const size_t program = FindProgram(args, *run, root);
  if (program < static_cast<size_t>(dashes - args.begin())) {
    dashes = args.insert(args.begin() + program, "--");
  }
  const bool dashes_given = dashes != args.end();
  if (dashes_given) {
    line.run.program.assign(dashes + 1, args.end());
    args.erase(dashes, args.end());
  }
  const bool config_given =
      std::any_of(args.begin(), args.end(), [](const std::string& arg) {
        return arg == "--config" || absl::StartsWith(arg, "--config=");
      });
  if (!config_given && IsSetInEnvironment(kConfigVariable)) {
    args.insert(args.begin(),
                absl::StrCat("--config=", std::getenv(kConfigVariable)));
  }
  // There the command is optional; CLI11 would ask for one first.
  if (args.size() == 1 && args[0] == "--version") args[0] = "version";

  std::string command;
  try {
    std::reverse(args.begin(), args.end());  // as CLI11 wants them
    root.parse(std::move(args));
    command = NameOfParsed(root);
  } catch (const CLI::ParseError& error) {
    command = NameOfParsed(root);
    std::ostringstream out;
    std::ostringstream err;
    if (root.exit(error, out, err) != 0) {
      // Of a command, it has the name of that.
      if (error.get_exit_code() ==
          static_cast<int>(CLI::ExitCodes::ExtrasError)) {
        return UsageError(command,
                          absl::StrCat("not expected: ",
                                       absl::StrJoin(root.remaining(true), " "),
                                       FlagMeant(root.remaining(true), root)));
      }
      // Of an option, or of a command in place of which there is another word.
      if (error.get_name() != "RequiredError" ||
          Commands(LastParsed(root)).empty()) {
        return UsageError(command, error.what());
      }
      const std::vector<std::string> rest = root.remaining(true);
      return UsageError(
          command,
          rest.empty()
              ? "no command given"
              : absl::StrCat("no such command: ", command,
                             command.empty() ? "" : " ", rest[0],
                             DidYouMean(rest[0], Commands(LastParsed(root)))));
    }
    line.text = out.str();
    return line;
  }
  if (!config->unknown().empty()) {
    return UsageError(
        command,
        absl::StrCat("the configuration file sets unknown options: ",
                     absl::StrJoin(config->unknown(), ", "),
                     " (write each option in the section of its command, such "
                     "as [run])"));
  }

  using Command = CommandLine::Command;
  static const auto* const commands = new std::map<std::string, Command>{
      {"serve", Command::kServe},
      {"run", Command::kRun},
      {"status", Command::kStatus},
      {"logs", Command::kLogs},
      {"plan show", Command::kPlanShow},
      {"plan set", Command::kPlanSet},
      {"plan schedule", Command::kPlanSchedule},
      {"plan check", Command::kPlanCheck},
      {"plan memory", Command::kPlanMemory},
      {"why", Command::kWhy},
      {"checkpoint list", Command::kCheckpoint},
      {"checkpoint show", Command::kCheckpoint},
      {"checkpoint now", Command::kCheckpoint},
      {"checkpoint verify", Command::kCheckpoint},
      {"checkpoint export", Command::kCheckpoint},
      {"checkpoint import", Command::kCheckpoint},
      {"checkpoint delete", Command::kCheckpoint},
      {"certs init", Command::kCerts},
      {"certs add", Command::kCerts},
      {"certs show", Command::kCerts},
      {"hooks", Command::kHooks},
      {"version", Command::kVersion}};
  line.command = version ? Command::kVersion : commands->at(command);
  if (dashes_given && line.command != Command::kRun) {
    return UsageError(command, "only `coxswain run` takes a program after --");
  }
  const std::string wrong = CheckCombination(line);
  if (!wrong.empty()) return UsageError(command, wrong);
  return line;
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(std::vector<std::string> args) {
  try {
    return Parse(std::move(args));
  } catch (const std::exception& error) {
    return UsageError("", error.what());
  }
}

}  // namespace coxswain
