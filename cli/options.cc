#include "cli/options.h"

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cli/address.h"
#include "client/comm/backends/registry.h"
#include "client/device/selection.h"
#include "schedule/pipeline/action.h"
#include "schedule/pipeline/generate.h"
#include "server/open_state.h"

namespace coxswain {
namespace {

// The limits of the wire contract: see proto/rendezvous.proto.
constexpr size_t kMaxJob = 128;
constexpr size_t kMaxNode = 255;
constexpr int kMaxRestarts = 1000000;
constexpr int kMaxKeep = 1000000000;
constexpr int kMaxHeldMib = 1 << 30;
constexpr int kMaxAttempt = 1000000000;
constexpr int kMaxStatus = 255;
constexpr int kMostDays = 10 * 365;

// The kinds of options that the commands have: each is a flag, a variable and a
// key of the configuration file at once, with its check.

// Returns what is wrong with a value; empty if nothing is.
using OptionCheck = std::function<std::string(const std::string&)>;

// Reads 500ms, 10s, 5m, or plain seconds.
bool ParseDuration(const std::string& text, absl::Duration* duration) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds))
    *duration = absl::Seconds(seconds);
  else if (!absl::ParseDuration(text, duration))
    return false;
  return *duration < absl::InfiniteDuration() &&
         *duration > -absl::InfiniteDuration();
}

// Returns COXSWAIN_NAME_OF_OPTION for --name-of-option.
std::string VariableOf(std::string option) {
  for (char& c : option) c = c == '-' ? '_' : absl::ascii_toupper(c);
  return absl::StrCat("COXSWAIN_", option);
}

// `check` may be null.
CLI::Option* AddText(CLI::App* app, const std::string& name,
                     std::string* target, const std::string& type,
                     const std::string& description, const OptionCheck& check) {
  CLI::Option* option = app->add_option("--" + name, *target, description)
                            ->type_name(type)
                            ->envname(VariableOf(name));
  if (!target->empty()) option->default_str(*target);
  if (check != nullptr) option->check(check, "");
  return option;
}

OptionCheck IsNumber(int least, int most) {
  return [=](const std::string& text) {
    int value = 0;
    if (absl::SimpleAtoi(text, &value) && value >= least && value <= most) {
      return std::string();
    }
    return absl::StrCat("must be a whole number from ", least, " to ", most,
                        ", not '", text, "'");
  };
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, int* target,
                       int least, int most, const std::string& description) {
  return app->add_option("--" + name, *target, description)
      ->type_name("N")
      ->default_str(absl::StrCat(*target))
      ->envname(VariableOf(name))
      ->check(IsNumber(least, most), "");
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
      return absl::StrCat(
          "'", text, "' is not a duration; write for example 500ms, 10s, 5m");
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

std::string CheckListen(const std::string& text) {
  return std::string(
      ParseHostPort(text, PortRule::kAnyFree).status().message());
}

void AddTlsFiles(CLI::App* app, TlsFiles* files, const std::string& cert,
                 const std::string& ca) {
  AddText(app, "tls-cert", &files->cert, "FILE", cert, nullptr);
  AddText(app, "tls-key", &files->key, "FILE", "the private key of --tls-cert",
          nullptr);
  AddText(app, "tls-ca", &files->ca, "FILE", ca, nullptr);
}

void AddClientSecurity(CLI::App* app, ClientSecurity* security) {
  AddTlsFiles(app, &security->tls,
              "the certificate (PEM) that identifies this caller to the "
              "coordinator",
              "connect with TLS; this certificate authority (PEM) must have "
              "signed the coordinator's certificate. Files are read again when "
              "they change");
  AddText(app, "token-file", &security->token_file, "FILE",
          "the file with the bearer token that identifies this caller",
          nullptr);
  AddFlag(app, "--insecure", "insecure", &security->insecure,
          "allow sending the token in plain text over a network");
}

void AddServeSecurity(CLI::App* app, ServeSecurity* security) {
  AddTlsFiles(app, &security->rpc.tls,
              "accept TLS connections only, with this certificate (PEM)",
              "callers identify themselves with a certificate that this "
              "certificate authority has signed. Files are read again when "
              "they change");
  AddText(app, "tokens", &security->rpc.tokens, "FILE",
          "callers identify themselves with a bearer token; the file has a "
          "line for each: 'operator TOKEN' or 'job/NAME TOKEN'",
          nullptr);
  AddText(
      app, "token-keys", &security->rpc.token_keys, "FILE",
      "also accept tokens that these keys have signed (a JSON Web Key Set): "
      "--tokens has a line 'job/NAME subject:SUBJECT' for each subject",
      nullptr);
  AddText(app, "token-issuer", &security->rpc.token_rules.issuer, "ISSUER",
          "the issuer (iss) that signed tokens must have", nullptr);
  AddText(app, "token-audience", &security->rpc.token_rules.audience, "NAME",
          "the audience (aud) that signed tokens must have", nullptr);
  AddFlag(app, "--insecure", "insecure", &security->insecure,
          "listen beyond the loopback without requiring certificates: any "
          "program that reaches the address can read the traffic or stop the "
          "coordinator");
  AddText(app, "health-listen", &security->health_listen, "HOST:PORT",
          "answer probes here, over plain HTTP, and nothing else: /liveness, "
          "/readiness and /availability",
          CheckListen);
}

// Reads "3", or "2:5" for at least 2 and at most 5.
bool ParseNodeRange(const std::string& text, NodeRange* range) {
  const std::vector<std::string> ends = absl::StrSplit(text, ':');
  return ends.size() <= 2 && absl::SimpleAtoi(ends.front(), &range->least) &&
         absl::SimpleAtoi(ends.back(), &range->most) && range->least >= 1 &&
         range->least <= range->most && range->most <= kMaxWorkers;
}

void AddNodeRange(CLI::App* app, const std::string& name, NodeRange* target,
                  const std::string& description) {
  app->add_option_function<std::string>(
         "--" + name,
         [target](const std::string& text) { ParseNodeRange(text, target); },
         description)
      ->type_name("N|MIN:MAX")
      ->default_str("1")
      ->envname(VariableOf(name))
      ->check(
          [](const std::string& text) {
            NodeRange range;
            if (ParseNodeRange(text, &range)) return std::string();
            return absl::StrCat(
                "must be a whole number from 1 to ", kMaxWorkers,
                ", or two with a colon between, the smaller one first, as in "
                "2:5; not '",
                text, "'");
          },
          "");
}

OptionCheck IsAddress(PortRule rule) {
  return [rule](const std::string& text) {
    return std::string(ParseHostPort(text, rule).status().message());
  };
}

std::string AreAddresses(const std::string& text) {
  return std::string(ParseHostPorts(text).status().message());
}

std::string CheckLogLevel(const std::string& text) {
  static const std::set<std::string> levels = {"debug", "info", "warning",
                                               "error", "off"};
  if (levels.count(text) > 0) return "";
  return absl::StrCat("must be debug, info, warning, error or off, not '", text,
                      "'");
}

std::string CheckLogFormat(const std::string& text) {
  if (text == "text" || text == "json") return "";
  return absl::StrCat("must be text or json, not '", text, "'");
}

std::string CheckState(const std::string& text) {
  return std::string(server::ParseStateLocation(text).status().message());
}

std::string CheckNode(const std::string& text) {
  bool allowed = !text.empty() && text.size() <= kMaxNode;
  for (const char c : text) allowed = allowed && absl::ascii_isgraph(c);
  if (allowed) return "";
  return absl::StrCat("'", text, "' is not a valid node name: 1 to ", kMaxNode,
                      " visible characters");
}

// Returns why workers could not write their traces, one file each beside the
// named one: reported before any worker starts.
std::string CheckTrace(const std::string& text) {
  const std::filesystem::path path(text);
  std::error_code ignored;
  if (!path.has_filename() || std::filesystem::is_directory(path, ignored)) {
    return absl::StrCat("must name a file, not a folder: '", text, "'");
  }
  const std::string folder =
      path.has_parent_path() ? path.parent_path().string() : ".";
  if (!std::filesystem::is_directory(folder, ignored)) {
    return absl::StrCat("'", text, "' needs the folder '", folder,
                        "', which does not exist: create it first");
  }
  if (access(folder.c_str(), W_OK | X_OK) == 0) return "";
  return absl::StrCat("cannot write to the folder '", folder, "' of '", text,
                      "'");
}

std::string CheckGpus(const std::string& text) {
  return std::string(ParseGpuRequest(text).status().message());
}

std::string CheckBackend(const std::string& text) {
  return std::string(BackendName(text).status().message());
}

std::string CheckTopology(const std::string& text) {
  for (const std::string& key :
       std::vector<std::string>(absl::StrSplit(text, ','))) {
    bool allowed = !key.empty();
    for (const char c : key) allowed = allowed && absl::ascii_isgraph(c);
    if (allowed) continue;
    return absl::StrCat(
        "must be keys of visible characters with commas "
        "between, as in zone-1,rack-7; not '",
        text, "'");
  }
  return "";
}

void AddCoordinator(CLI::App* app, std::string* coordinator,
                    ClientSecurity* security) {
  AddText(app, "coordinator", coordinator, "HOST:PORT[,...]",
          "the coordinator's address; required. With commas between, the "
          "addresses of the leader and of those that stand by",
          AreAddresses);
  AddClientSecurity(app, security);
}

void AddTimeout(CLI::App* app, absl::Duration* timeout) {
  AddDuration(app, "timeout", absl::Milliseconds(1), timeout,
              "how long to wait for the answer");
}

void AddMembership(CLI::App* app, server::MembershipOptions* membership) {
  constexpr absl::Duration kLeast = absl::Milliseconds(1);
  AddDuration(app, "heartbeat-interval", kLeast,
              &membership->heartbeat_interval,
              "how often each worker sends a heartbeat");
  AddDuration(app, "lease", kLeast, &membership->lease,
              "a worker that sends nothing for this long counts as lost; at "
              "least two heartbeat intervals");
  AddDuration(app, "reattach-grace", kLeast, &membership->reattach_grace,
              "how long a worker whose connection broke, or whose coordinator "
              "was restarted, may take to connect again");
  AddDuration(app, "last-call", kLeast, &membership->last_call,
              "how long a job that could begin with fewer workers waits for "
              "one more");
}

std::string CheckPipeline(const std::string& text) {
  return std::string(pipeline::ScheduleSpec::Parse(text).status().message());
}

void AddCapacity(CLI::App* app, int* capacity) {
  AddNumber(app, "capacity", capacity, 0, pipeline::kMaxMicroBatches,
            "the messages that a channel between stages holds, sent and not "
            "yet received; 0: a send waits for its receive. By default as many "
            "as there are")
      ->default_str("");
}

void AddLogFormat(CLI::App* app, std::string* format) {
  AddText(app, "log-format", format, "FORMAT",
          "format of the log: text, or json for one object per line",
          CheckLogFormat);
}

void AddLogLevel(CLI::App* app, std::string* level) {
  AddText(app, "log-level", level, "LEVEL",
          "lowest level to log to stderr: debug, info, warning, error "
          "or off",
          CheckLogLevel);
}

}  // namespace

void AddOptions(CLI::App* app, ServeOptions* options) {
  AddText(app, "listen", &options->listen, "HOST:PORT",
          "where to listen; port 0 takes any free port. An address beyond the "
          "loopback needs --tls-cert, --tls-key and --tls-ca, or --insecure",
          IsAddress(PortRule::kAnyFree));
  AddServeSecurity(app, &options->security);
  AddText(app, "state-dir", &options->state_dir, "DIR",
          "folder of the checkpoints, and of the state if --state is not "
          "given; created if missing",
          [](const std::string& text) {
            return text.empty() ? "must name a folder" : "";
          });
  AddText(app, "state", &options->state, "LOCATION",
          "where the state is: sqlite:DIR, or "
          "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]. Of several coordinators "
          "on one etcd one leads, and the others stand by",
          CheckState);
  AddFlag(
      app, "--repair-state", "repair-state", &options->repair_state,
      "if the coordinator refuses to start because the cluster's id, schema "
      "or numbers cannot be read: begin a new cluster, which ends running "
      "jobs. A readable state is left as it is");
  AddDuration(app, "leader-lease", absl::Seconds(1), &options->leader_lease,
              "with etcd: how long a leader that cannot reach etcd stays the "
              "leader; then another coordinator takes over");
  AddMembership(app, &options->membership);
  AddNumber(app, "checkpoint-keep-last", &options->checkpoint_keep_last, 0,
            kMaxKeep,
            "how many of a job's newest checkpoints to keep, unless the job "
            "sets it; older ones are deleted. 0: all");
  AddNumber(app, "checkpoint-keep-every", &options->checkpoint_keep_every, 0,
            kMaxKeep,
            "also keep checkpoints whose step is a multiple of this; 0: no "
            "others");
  AddNumber(app, "max-held-mib", &options->max_held_mib, 0, kMaxHeldMib,
            "how many MiB of calls and messages gRPC may hold, complete or "
            "not; beyond it, some calls are ended and their clients retry "
            "them. 0: a quarter of what the process may use, 64 at least");
  AddText(app, "port-file", &options->port_file, "FILE",
          "write the port to this file once it is bound", nullptr);
  AddText(app, "http", &options->http, "HOST:PORT",
          "serve the status page, its data and Prometheus metrics here, over "
          "plain HTTP and without a login; port 0 takes any free port",
          IsAddress(PortRule::kAnyFree));
  AddText(app, "http-port-file", &options->http_port_file, "FILE",
          "write the port of --http to this file once it is bound", nullptr);
  app->add_option(
         "--http-hosts", options->http_hosts,
         "further host names under which --http may be requested, with "
         "commas between, such as a proxy's; addresses, localhost and "
         "this machine's name are always accepted")
      ->type_name("NAME,...")
      ->envname(VariableOf("http-hosts"))
      ->delimiter(',');
  AddLogLevel(app, &options->log_level);
  AddLogFormat(app, &options->log_format);
}

void AddOptions(CLI::App* app, RunOptions* options) {
  AddNodeRange(app, "nnodes", &options->nnodes,
               "launchers of this job, one per node. MIN:MAX: the job starts "
               "and continues with at least MIN nodes, and uses up to MAX");
  AddNumber(app, "nproc", &options->nproc, 1, kMaxWorkers,
            "workers that this launcher starts; must be the same on all nodes")
      ->default_str("1, or one per GPU of --gpus");
  app->add_option("--min-workers", options->min_workers,
                  "fewest workers that the job may run with, on all nodes "
                  "together; by default MIN times --nproc")
      ->type_name("N")
      ->envname(VariableOf("min-workers"))
      ->check(IsNumber(1, kMaxWorkers), "");
  AddNumber(app, "max-restarts", &options->max_restarts, 0, kMaxRestarts,
            "how often to restart each of these workers when it fails, while "
            "the others continue");
  AddNumber(app, "attempt", &options->attempt, 0, kMaxAttempt,
            "number of this start of the whole job: workers of an earlier "
            "attempt are refused");
  AddText(app, "topology", &options->topology, "KEY,...",
          "where this node is, widest first, as in zone-1,rack-7: ranks are "
          "assigned in this order, numbers compared as numbers",
          CheckTopology);
  AddText(app, "mesh", &options->mesh, "AXIS=N,...",
          "how the job's ranks are divided: axes of pp, dp, shard, tp in this "
          "order, as in dp=*,shard=2; * stands for as many as the workers make",
          nullptr);
  AddText(app, "coordinator", &options->coordinator, "HOST:PORT[,...]",
          "the job's coordinator; with commas between, the leader and those "
          "that stand by. Without it, a job of one node runs a private "
          "coordinator inside the launcher",
          AreAddresses);
  AddClientSecurity(app, &options->security);
  AddText(app, "job", &options->job, "NAME",
          "the job's name; required with --coordinator", CheckJob);
  AddText(app, "node", &options->node, "NAME",
          "this node's name, different for each launcher of a job; by default "
          "the host name",
          CheckNode);
  AddText(app, "gpus", &options->gpus, "N|LIST|none",
          "one GPU for each worker of this node: the first N, or a list in the "
          "order of workers, as in 2,0 (and '2,' for GPU 2 alone), by number "
          "among those of CUDA_VISIBLE_DEVICES or by UUID; none hides all "
          "GPUs. By default each worker chooses its own",
          CheckGpus);
  AddText(app, "backend", &options->backend, "NAME",
          absl::StrCat("how workers exchange gradients: ",
                       absl::StrJoin(BackendNames(), ", ")),
          CheckBackend);
  AddFlag(app, "--plain-data", "plain-data", &options->plain_data,
          "do not encrypt what workers exchange by tcp or two_level, which "
          "they do with TLS to the coordinator; the same for all workers of a "
          "job");
  AddText(app, "bind-address", &options->bind_address, "ADDRESS",
          "where workers listen for each other; by default the address that "
          "leads to the coordinator",
          nullptr);
  AddText(app, "trace", &options->trace, "FILE",
          "workers write a trace of their steps for ui.perfetto.dev: for "
          "trace.json, rank 0 writes trace.rank0.json. An older file is "
          "replaced",
          CheckTrace);
  app->add_option("--plan", options->plan,
                  "settings that the job's plan begins with, in place of the "
                  "program's, as in 'accumulation=4 max_steps=1000'; may be "
                  "repeated. `coxswain plan set --help` lists the names")
      ->type_name("'NAME=VALUE ...'")
      ->envname(VariableOf("plan"))
      ->allow_extra_args(false);
  AddDuration(app, "join-timeout", absl::Milliseconds(1),
              &options->join_timeout,
              "how long workers wait until enough of them have joined");
  AddDuration(app, "reattach-grace", absl::Milliseconds(1),
              &options->reattach_grace,
              "how long workers wait for a coordinator that they cannot reach");
  AddDuration(
      app, "exit-grace", absl::ZeroDuration(), &options->exit_grace,
      "after a worker failed in a job that cannot go on without it, how "
      "long the others may take to end before SIGTERM");
  AddDuration(app, "stop-grace", absl::ZeroDuration(), &options->stop_grace,
              "after SIGTERM, or a request to stop, how long before SIGKILL: "
              "time to finish the step under way");
  AddNumber(app, "stop-status", &options->stop_status, 0, kMaxStatus,
            "exit status, in place of 0, after a request to stop: it lets a "
            "supervisor distinguish a drained node from a finished job")
      ->default_str("0");
  AddFlag(app, "--prefix,!--no-prefix", "prefix", &options->prefix,
          "begin each line of output with [node/slot] (the default); "
          "--no-prefix copies the output unchanged");
  AddFlag(app, "--follow", "follow", &options->follow,
          "the program is Python: follow each of torch's "
          "DistributedDataParallel in it, with no change to the program. torch "
          "exchanges, or Coxswain where COXSWAIN_FOLLOW_EXCHANGE is coxswain");
  AddLogLevel(app, &options->log_level);
  AddLogFormat(app, &options->log_format);
}

void AddOptions(CLI::App* app, StatusOptions* options) {
  AddCoordinator(app, &options->coordinator, &options->security);
  AddText(app, "job", &options->job, "NAME", "only this job", CheckJob);
  AddFlag(app, "--json", "json", &options->json, "print JSON");
  AddFlag(app, "--watch", "watch", &options->watch,
          "refresh until interrupted, with rates: in place on a terminal, "
          "elsewhere a line for each job");
  AddDuration(app, "interval", absl::Milliseconds(100), &options->interval,
              "with --watch: how long to wait between two refreshes");
  AddTimeout(app, &options->timeout);
}

void AddOptions(CLI::App* app, LogsOptions* options) {
  AddCoordinator(app, &options->coordinator, &options->security);
  app->add_option("--job,JOB", options->job, "only this job")
      ->type_name("NAME")
      ->envname(VariableOf("job"))
      ->check(CheckJob, "");
  AddFlag(app, "--follow", "follow", &options->follow,
          "also print new events, until interrupted; waits for a coordinator "
          "that cannot be reached");
  AddDuration(app, "since", absl::ZeroDuration(), &options->since,
              "only events that are no older than this; 0: all");
  AddFlag(app, "--json", "json", &options->json, "one JSON object per line");
  AddTimeout(app, &options->timeout);
}

void AddOptions(CLI::App* app, JobOptions* options) {
  AddCoordinator(app, &options->coordinator, &options->security);
  app->add_option("--job,JOB", options->job,
                  "the job; may be left out where there is only one")
      ->type_name("NAME")
      ->envname(VariableOf("job"))
      ->check(CheckJob, "");
  AddFlag(app, "--json", "json", &options->json, "print JSON");
  AddTimeout(app, &options->timeout);
}

void AddOptions(CLI::App* app, PlanSetOptions* options) {
  AddCoordinator(app, &options->coordinator, &options->security);
  AddText(app, "job", &options->job, "NAME",
          "the job; may be left out where there is only one", nullptr);
  app->add_option("CHANGE", options->changes,
                  "what to change: the names and values are listed below. The "
                  "job's name may come first")
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

void AddOptions(CLI::App* app, PlanScheduleOptions* options) {
  AddText(app, "pipeline", &options->pipeline, "SPEC",
          "gpipe, gpipe(order=fifo), 1f1b, interleaved(chunks=N) or zb_h1",
          CheckPipeline);
  AddNumber(app, "ranks", &options->ranks, 1, pipeline::kMaxRanks,
            "the ranks of the pipeline; required")
      ->default_str("");
  AddNumber(app, "accumulation", &options->accumulation, 1,
            pipeline::kMaxMicroBatches, "the micro-batches of a step; required")
      ->default_str("");
  AddNumber(app, "chunks", &options->chunks, 2, pipeline::kMaxChunks,
            "the stages of each rank, for interleaved")
      ->default_str("");
  AddCapacity(app, &options->capacity);
  AddFlag(app, "--csv", "csv", &options->csv,
          "print the actions instead, a line for each rank, as "
          "torch.distributed.pipelining reads them");
}

void AddOptions(CLI::App* app, PlanCheckOptions* options) {
  app->add_option("FILE", options->file,
                  "a schedule as torch's _dump_csv writes it: a line for each "
                  "rank, an action in each cell")
      ->type_name("FILE")
      ->required();
  AddCapacity(app, &options->capacity);
}

void AddOptions(CLI::App* app, PlanMemoryOptions* options) {
  app->add_option("MODEL", options->model,
                  "the model's layers, or a transformer's sizes, as JSON: "
                  "docs/parallelism.md has its fields")
      ->type_name("FILE")
      ->required();
  AddText(app, "mesh", &options->mesh, "MESH",
          "the ranks, as in pp=2,dp=2,shard=4; by default one", nullptr);
  AddNumber(app, "zero", &options->zero, 0, 3,
            "what ranks keep a slice of: 1: the optimizer's state; 2: "
            "gradients, too");
  AddFlag(app, "--force-zero", "force-zero", &options->force_zero,
          "with --zero 2, of a mesh with pp or tp, where it saves nothing: run "
          "it all the same");
  AddFlag(app, "--offload", "offload", &options->offload,
          "with --zero 1, of a model on a GPU: the optimizer's state is in the "
          "host's memory");
  AddNumber(app, "accumulation", &options->accumulation, 1,
            pipeline::kMaxMicroBatches, "the micro-batches of a step");
  AddText(app, "pipeline", &options->pipeline, "SPEC",
          "gpipe, gpipe(order=fifo), 1f1b, interleaved(chunks=N) or zb_h1; by "
          "default 1f1b where the mesh has pp or tp",
          CheckPipeline);
  AddText(app, "stages", &options->stages, "STAGES",
          "which layers each stage has, as in 0-3,4-7, or `parameters`; by "
          "default as many in each",
          nullptr);
  AddFlag(app, "--sequence", "sequence", &options->sequence,
          "with tp: what lies between divided layers is divided, too, along "
          "the sequence");
  AddText(app, "optimizer", &options->optimizer, "NAME",
          "sgd, momentum, adam, adamw, rmsprop or adagrad", nullptr);
  AddText(app, "hook", &options->hook, "SPEC",
          "the hook, which may remember errors", nullptr);
  AddFlag(app, "--sync-each-batch", "sync-each-batch",
          &options->sync_each_batch,
          "each micro-batch is exchanged, as by the plan's sync_each_batch");
  AddFlag(app, "--gradient-as-bucket-view", "gradient-as-bucket-view",
          &options->gradient_as_bucket_view,
          "without zero: gradients lie in the buckets, as by the program's "
          "option");
  AddNumber(app, "bucket-mib", &options->bucket_mib, 1, 1 << 20,
            "the size of a bucket");
  AddFlag(app, "--json", "json", &options->json, "print JSON, in bytes");
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

void AddOptions(CLI::App* app, CheckpointOptions::Action action,
                CheckpointOptions* options) {
  using Action = CheckpointOptions::Action;
  const bool import = action == Action::kImport;
  const bool one = action != Action::kList && action != Action::kNow && !import;
  AddCoordinator(app, &options->coordinator, &options->security);
  AddText(app, "job", &options->job, "NAME",
          import ? "the job to import into; by default the one exported from"
                 : "the job; may be left out where there is only one",
          CheckJob);
  if (one) {
    CLI::Option* which = app->add_option("CHECKPOINT", options->which,
                                         "its id, its step, or 'newest'")
                             ->type_name("ID|STEP|newest");
    // No default for what cannot be undone.
    if (action == Action::kDelete) which->required();
  }
  if (import) {
    app->add_option("FOLDER", options->folder,
                    "a folder that `coxswain checkpoint export` has written")
        ->type_name("FOLDER")
        ->required();
  }
  if (action == Action::kExport) {
    AddText(app, "to", &options->folder, "FOLDER",
            "the folder to write, which must not exist; by default the "
            "checkpoint's id, in the current folder",
            nullptr);
  }
  if (action == Action::kList || action == Action::kShow) {
    AddFlag(app, "--json", "json", &options->json, "print JSON");
  }
  if (import || action == Action::kExport || action == Action::kVerify) {
    AddFlag(app, "--quiet", "quiet", &options->quiet, "do not show progress");
  }
  if (action == Action::kDelete) {
    AddFlag(app, "--yes", "yes", &options->yes, "do not ask for confirmation");
  }
  if (action == Action::kNow) {
    AddText(app, "reason", &options->reason, "TEXT",
            "the reason, for the logs of the workers", nullptr);
  }
  AddTimeout(app, &options->timeout);
}

std::string CheckSecurity(const ClientSecurity& security,
                          const std::string& coordinator) {
  return std::string(
      CheckClientSecurity(security, coordinator, Clock::Real()->WallTime())
          .message());
}

std::string CheckSecurity(const ServeSecurity& security,
                          const std::string& listen) {
  const absl::Status files = security.rpc.Validate(Clock::Real()->WallTime());
  if (!files.ok()) return std::string(files.message());
  const auto address = ParseHostPort(listen, PortRule::kAnyFree);
  if (security.insecure || !address.ok() || IsLoopback(address->host)) {
    return "";
  }
  if (!security.rpc.tokens.empty()) {
    // gRPC reads what a caller sends before the caller shows a token.
    return absl::StrCat(
        "--listen ", listen,
        " can be reached by callers without a token, and the coordinator does "
        "not limit what they send: listen on 127.0.0.1 behind a proxy "
        "(deploy/haproxy), or require certificates (--tls-ca) instead, or give "
        "--insecure if you trust the network");
  }
  if (!security.rpc.tls.ca.empty()) return "";
  return absl::StrCat(
      "--listen ", listen,
      " can be reached from elsewhere, and callers need no certificate: give "
      "--tls-cert, --tls-key and --tls-ca (`coxswain certs init` makes them), "
      "listen on 127.0.0.1, or give --insecure if you trust the network");
}

void AddCertsOptions(CLI::App* app, CertsOptions::Action action,
                     CertsOptions* options) {
  using Action = CertsOptions::Action;
  AddText(app, "dir", &options->dir, "DIR",
          action == Action::kInit ? "the folder to create"
                                  : "the folder that `certs init` created",
          nullptr);
  if (action == Action::kShow) return;
  if (action == Action::kInit) {
    app->add_option("--host", options->hosts,
                    "a name or an address by which workers reach the "
                    "coordinator, besides this host's name and the loopback; "
                    "may be repeated")
        ->type_name("NAME")
        ->allow_extra_args(false);
  }
  app->add_option("--job", options->jobs,
                  "a job that gets a certificate; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->check(CheckJob, "");
  AddNumber(app, "days", &options->days, 1, kMostDays,
            "for how many days the certificates are valid");
}

std::string CheckCerts(const CertsOptions& options) {
  if (options.dir.empty()) return "--dir must name a folder";
  if (options.action == CertsOptions::Action::kAdd && options.jobs.empty()) {
    return "nothing to add: give --job NAME";
  }
  return "";
}

std::string CheckJob(const std::string& text) {
  bool allowed = !text.empty() && text.size() <= kMaxJob;
  for (const char c : text) {
    allowed =
        allowed && (absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-');
  }
  if (allowed) return "";
  return absl::StrCat("'", text, "' is not a valid job name: 1 to ", kMaxJob,
                      " characters of A-Z a-z 0-9 . _ -");
}

}  // namespace coxswain
