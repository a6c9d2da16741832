#include "cli/options.h"

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <set>

#include "CLI/App.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cli/address.h"

namespace coxswain {
namespace {

// The limits of the wire contract: see proto/rendezvous.proto.
constexpr size_t kMaxJob = 128;
constexpr size_t kMaxNode = 255;
// The coordinator admits no more members to a job.
constexpr int kMaxWorkers = 4096;

// A check returns what is wrong, or nothing.
using Check = std::function<std::string(const std::string&)>;

// --name-of-option may be given as COXSWAIN_NAME_OF_OPTION.
std::string VariableOf(std::string option) {
  for (char& c : option) c = c == '-' ? '_' : absl::ascii_toupper(c);
  return absl::StrCat("COXSWAIN_", option);
}

CLI::Option* AddText(CLI::App* app, const std::string& name,
                     std::string* target, const std::string& type,
                     const std::string& description, const Check& check) {
  CLI::Option* option = app->add_option("--" + name, *target, description)
                            ->type_name(type)
                            ->envname(VariableOf(name));
  if (!target->empty()) option->default_str(*target);
  if (check != nullptr) option->check(check, "");
  return option;
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, int* target,
                       int least, int most, const std::string& description) {
  return app->add_option("--" + name, *target, description)
      ->type_name("N")
      ->default_str(absl::StrCat(*target))
      ->envname(VariableOf(name))
      ->check(
          [=](const std::string& text) {
            int value = 0;
            if (absl::SimpleAtoi(text, &value) && value >= least &&
                value <= most) {
              return std::string();
            }
            return absl::StrCat("must be a whole number from ", least, " to ",
                                most, ", not '", text, "'");
          },
          "");
}

// Such as 500ms, 10s, 5m, or plain seconds.
bool ParseDuration(const std::string& text, absl::Duration* duration) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds))
    *duration = absl::Seconds(seconds);
  else if (!absl::ParseDuration(text, duration))
    return false;
  return *duration < absl::InfiniteDuration() &&
         *duration > -absl::InfiniteDuration();
}

CLI::Option* AddDuration(CLI::App* app, const std::string& name,
                         absl::Duration least, absl::Duration* target,
                         const std::string& description) {
  const auto parse = [target](const std::string& text) {
    ParseDuration(text, target);  // checked before
  };
  const auto check = [least](const std::string& text) {
    absl::Duration value;
    if (!ParseDuration(text, &value)) {
      return absl::StrCat("'", text,
                          "' is no duration; write for example 500ms, 10s, 5m");
    }
    if (value < least) {
      return absl::StrCat("must be at least ", absl::FormatDuration(least),
                          ", not ", text);
    }
    return std::string();
  };
  CLI::Option* option =
      app->add_option_function<std::string>("--" + name, parse, description)
          ->type_name("DURATION")
          ->envname(VariableOf(name))
          ->check(check, "");
  if (*target != absl::InfiniteDuration()) {
    option->default_str(absl::FormatDuration(*target));
  }
  return option;
}

CLI::Option* AddFlag(CLI::App* app, const std::string& flags,
                     const std::string& name, bool* target,
                     const std::string& description) {
  return app->add_flag(flags, *target, description)->envname(VariableOf(name));
}

Check IsAddress(PortRule rule) {
  return [rule](const std::string& text) {
    return std::string(ParseHostPort(text, rule).status().message());
  };
}

std::string CheckLogLevel(const std::string& text) {
  static const std::set<std::string> levels = {"debug", "info", "warning",
                                               "error", "off"};
  if (levels.count(text) > 0) return "";
  return absl::StrCat("must be debug, info, warning, error or off, not '", text,
                      "'");
}

std::string CheckNode(const std::string& text) {
  bool allowed = !text.empty() && text.size() <= kMaxNode;
  for (const char c : text) allowed = allowed && absl::ascii_isgraph(c);
  if (allowed) return "";
  return absl::StrCat("'", text, "' is no node name: 1 to ", kMaxNode,
                      " visible characters");
}

// Workers write beside the named file, one file each: what would make all of
// them fail, once they have joined, is said before any is started.
std::string CheckTrace(const std::string& text) {
  const std::filesystem::path path(text);
  std::error_code ignored;
  if (!path.has_filename() || std::filesystem::is_directory(path, ignored)) {
    return absl::StrCat("must name a file, not a folder: '", text, "'");
  }
  const std::string folder =
      path.has_parent_path() ? path.parent_path().string() : ".";
  if (!std::filesystem::is_directory(folder, ignored)) {
    return absl::StrCat("there is no folder '", folder, "' for '", text,
                        "': create it first");
  }
  if (access(folder.c_str(), W_OK | X_OK) == 0) return "";
  return absl::StrCat("cannot write to the folder '", folder, "' of '", text,
                      "'");
}

void AddCoordinator(CLI::App* app, std::string* coordinator) {
  AddText(app, "coordinator", coordinator, "HOST:PORT",
          "the coordinator to ask; required", IsAddress(PortRule::kNamed));
}

void AddTimeout(CLI::App* app, absl::Duration* timeout) {
  AddDuration(app, "timeout", absl::Milliseconds(1), timeout,
              "how long to wait for the answer");
}

void AddLogLevel(CLI::App* app, std::string* level) {
  AddText(app, "log-level", level, "LEVEL",
          "least level that is logged to stderr: debug, info, warning, error "
          "or off",
          CheckLogLevel);
}

}  // namespace

void AddOptions(CLI::App* app, ServeOptions* options) {
  AddText(app, "listen", &options->listen, "HOST:PORT",
          "where to listen; port 0 takes any free port. Traffic is not "
          "encrypted: leave the loopback only on a network you trust",
          IsAddress(PortRule::kAnyFree));
  AddText(app, "state-dir", &options->state_dir, "DIR",
          "folder of the state and the checkpoints; created if missing",
          [](const std::string& text) {
            return text.empty() ? "must name a folder" : "";
          });
  AddText(app, "port-file", &options->port_file, "FILE",
          "write the port to this file once it is bound", nullptr);
  AddLogLevel(app, &options->log_level);
}

void AddOptions(CLI::App* app, RunOptions* options) {
  AddNumber(app, "nnodes", &options->nnodes, 1, kMaxWorkers,
            "launchers of this job, one per node");
  AddNumber(app, "nproc", &options->nproc, 1, kMaxWorkers,
            "workers that this launcher starts; the same on all nodes");
  AddText(app, "coordinator", &options->coordinator, "HOST:PORT",
          "the job's coordinator. Without it, and with one node, a private "
          "one runs inside the launcher",
          IsAddress(PortRule::kNamed));
  AddText(app, "job", &options->job, "NAME",
          "the job's name; needed with --coordinator", CheckJob);
  AddText(app, "node", &options->node, "NAME",
          "this node's name, of which each launcher of a job has its own; by "
          "default the host name",
          CheckNode);
  AddText(app, "backend", &options->backend, "NAME",
          "how workers exchange gradients: auto, gloo, loopback, shm", nullptr);
  AddText(app, "bind-address", &options->bind_address, "ADDRESS",
          "where workers listen for each other; by default the address that "
          "leads to the coordinator",
          nullptr);
  AddText(app, "trace", &options->trace, "FILE",
          "workers write a trace of their steps for ui.perfetto.dev, rank 0 of "
          "trace.json to trace.rank0.json; an older one is replaced",
          CheckTrace);
  app->add_option("--plan", options->plan,
                  "what the job's plan begins with, whatever the program says, "
                  "as in 'accumulation=4 max_steps=1000'; may be repeated. "
                  "`coxswain plan set --help` lists the names")
      ->type_name("'NAME=VALUE ...'")
      ->envname(VariableOf("plan"))
      ->allow_extra_args(false);
  AddDuration(app, "join-timeout", absl::Milliseconds(1),
              &options->join_timeout,
              "how long workers wait for the job to be complete");
  AddDuration(app, "exit-grace", absl::ZeroDuration(), &options->exit_grace,
              "after a worker failed, how long the others may take to end "
              "before SIGTERM");
  AddDuration(app, "stop-grace", absl::ZeroDuration(), &options->stop_grace,
              "after SIGTERM, or a request to stop, how long before SIGKILL");
  AddFlag(app, "--prefix,!--no-prefix", "prefix", &options->prefix,
          "begin each line of output with [node/slot] (the default); without, "
          "output passes as it comes");
  AddLogLevel(app, &options->log_level);
}

void AddOptions(CLI::App* app, StatusOptions* options) {
  AddCoordinator(app, &options->coordinator);
  AddText(app, "job", &options->job, "NAME", "only this job", CheckJob);
  AddFlag(app, "--json", "json", &options->json, "print JSON");
  AddTimeout(app, &options->timeout);
}

void AddOptions(CLI::App* app, JobOptions* options) {
  AddCoordinator(app, &options->coordinator);
  app->add_option("--job,JOB", options->job,
                  "the job; may be left out where there is only one")
      ->type_name("NAME")
      ->envname(VariableOf("job"))
      ->check(CheckJob, "");
  AddFlag(app, "--json", "json", &options->json, "print JSON");
  AddTimeout(app, &options->timeout);
}

void AddOptions(CLI::App* app, PlanSetOptions* options) {
  AddCoordinator(app, &options->coordinator);
  AddText(app, "job", &options->job, "NAME",
          "the job; may be left out where there is only one", nullptr);
  app->add_option("CHANGE", options->changes,
                  "what to change: the names and values are listed below. The "
                  "job's name may stand in front")
      ->type_name("NAME=VALUE");
  app->add_option("--expect", options->expect,
                  "change the plan only if its newest version is this one")
      ->type_name("VERSION")
      ->envname(VariableOf("expect"))
      ->check(
          [](const std::string& text) {
            int64_t version = 0;
            if (absl::SimpleAtoi(text, &version) && version >= 1) {
              return std::string();
            }
            return absl::StrCat("must be a version, from 1, not '", text, "'");
          },
          "");
  AddTimeout(app, &options->timeout);
}

void AddOptions(CLI::App* app, HooksOptions* options) {
  app->add_option("name", options->name, "only this hook")->type_name("NAME");
  AddText(app, "check", &options->check, "SPEC",
          "print the canonical form of this hook spec, or of the YAML file "
          "that @FILE names, or what is wrong with it",
          [](const std::string& text) {
            return text.empty() ? "must be a spec or @FILE" : "";
          });
  AddFlag(app, "--json", "json", &options->json, "print JSON");
  AddFlag(app, "--markdown", "markdown", &options->markdown,
          "print Markdown, as in docs/hooks.md");
}

std::string CheckJob(const std::string& text) {
  bool allowed = !text.empty() && text.size() <= kMaxJob;
  for (const char c : text) {
    allowed =
        allowed && (absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-');
  }
  if (allowed) return "";
  return absl::StrCat("'", text, "' is no job name: 1 to ", kMaxJob,
                      " characters of A-Z a-z 0-9 . _ -");
}

}  // namespace coxswain
