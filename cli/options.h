#ifndef COXSWAIN_CLI_OPTIONS_H_
#define COXSWAIN_CLI_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/tls_files.h"
#include "server/options/options.h"
#include "server/token/security.h"

namespace CLI {
class App;
}

namespace coxswain {

// The options of each command. AddOptions declares flags, environment variables
// and checks; the structs start with the defaults.

// Which callers `coxswain serve` accepts, and how they connect.
struct ServeSecurity {
  server::SecurityOptions rpc;
  bool insecure = false;      // plain text may leave this machine
  std::string health_listen;  // HOST:PORT; empty: no port for health checks
};

struct ServeOptions {
  std::string listen = "127.0.0.1:7077";
  ServeSecurity security;
  std::string state_dir = "coxswain-state";
  std::string state;  // sqlite:DIR or etcd://...; empty: SQLite in state_dir
  bool repair_state = false;
  absl::Duration leader_lease = absl::Seconds(5);  // with etcd
  server::MembershipOptions membership;
  int checkpoint_keep_last = 0;   // 0: no rule
  int checkpoint_keep_every = 0;  // 0: no rule
  int max_held_mib = 0;           // 0: the coordinator's default
  std::string port_file;          // empty: none
  std::string http;               // HOST:PORT; empty: no HTTP
  std::string http_port_file;     // empty: none
  std::vector<std::string> http_hosts;
  std::string log_level = "info";
  std::string log_format = "text";
};

// The coordinator's limit of workers for a job.
inline constexpr int kMaxWorkers = 4096;

struct NodeRange {
  int least = 1;
  int most = 1;
};

struct RunOptions {
  NodeRange nnodes;
  // 0: one per GPU of `gpus`, or else 1, which ParseCommandLine fills in.
  int nproc = 0;
  int min_workers = 0;  // of the whole job; 0: nnodes.least * nproc
  int max_restarts = 0;
  int attempt = 0;
  std::string topology;     // keys with commas between; empty: none
  std::string mesh;         // as base/mesh.h writes it; empty: none
  std::string coordinator;  // empty: a private one
  ClientSecurity security;
  std::string job;
  std::string node;          // empty: the host name
  std::string gpus;          // for ParseGpuRequest; empty: not given
  std::string backend;       // empty: the library's choice
  bool plain_data = false;   // workers do not encrypt what they exchange
  std::string bind_address;  // empty: found by the library
  std::string trace;         // a file in a folder that exists; empty: none
  // What the job's plan begins with, in place of the program's settings: texts
  // of NAME=VALUE words, which the checks join into one.
  std::vector<std::string> plan;
  absl::Duration join_timeout = absl::InfiniteDuration();    // the library's
  absl::Duration reattach_grace = absl::InfiniteDuration();  // likewise
  absl::Duration exit_grace = absl::Seconds(5);
  absl::Duration stop_grace = absl::Seconds(10);
  int stop_status = 0;
  bool prefix = true;
  bool follow = false;  // follow torch's DistributedDataParallel
  std::string log_level = "info";
  std::string log_format = "text";
  std::vector<std::string> program;  // and its arguments

  int MaxWorkers() const { return nnodes.most * nproc; }
  int MinWorkers() const {
    return min_workers > 0 ? min_workers : nnodes.least * nproc;
  }
};

struct StatusOptions {
  std::string coordinator;
  ClientSecurity security;
  std::string job;  // empty: all
  bool json = false;
  bool watch = false;
  absl::Duration interval = absl::Seconds(1);  // between two refreshes
  absl::Duration timeout = absl::Seconds(5);
};

struct LogsOptions {
  std::string coordinator;
  ClientSecurity security;
  std::string job;  // empty: all
  bool follow = false;
  absl::Duration since = absl::ZeroDuration();  // 0: all
  bool json = false;
  absl::Duration timeout = absl::Seconds(5);
};

// The options of `plan show` and `why`.
struct JobOptions {
  std::string coordinator;
  ClientSecurity security;
  std::string job;  // empty: the only one
  bool json = false;
  absl::Duration timeout = absl::Seconds(5);
};

struct PlanSetOptions {
  std::string coordinator;
  ClientSecurity security;
  std::string job;                   // empty: the only one
  std::vector<std::string> changes;  // NAME=VALUE, checked
  int64_t expect = 0;  // the version to change; 0: the newest, whichever it is
  absl::Duration timeout = absl::Seconds(5);
};

struct PlanScheduleOptions {
  std::string pipeline = "1f1b";  // for pipeline::ScheduleSpec
  int ranks = 0;                  // required
  int accumulation = 0;           // required
  int chunks = 0;  // of `pipeline`, where that does not have them; 0: not given
  int capacity = -1;  // of channels; -1: any
  bool csv = false;
};

struct PlanCheckOptions {
  std::string file;
  int capacity = -1;  // of channels; -1: any
};

// The words are those of the plan and of a program's options.
struct PlanMemoryOptions {
  std::string model;  // a file: schedule/memory/model.h
  std::string mesh;   // without a free axis; empty: one rank
  int zero = 0;
  bool force_zero = false;
  bool offload = false;
  int accumulation = 1;
  std::string pipeline;  // empty: 1f1b where the mesh has pp or tp
  std::string stages;    // empty: even
  bool sequence = false;
  std::string optimizer = "adam";
  std::string hook = "allreduce";
  bool sync_each_batch = false;
  bool gradient_as_bucket_view = false;
  int bucket_mib = 25;
  bool json = false;
};

// The options of `checkpoint ...`.
struct CheckpointOptions {
  enum class Action { kList, kShow, kExport, kImport, kVerify, kDelete, kNow };
  Action action = Action::kList;
  std::string coordinator;
  ClientSecurity security;
  std::string job;               // empty: the only one, or that of the import
  std::string which = "newest";  // or an id, or a step
  std::string folder;            // to export to, or to import from
  std::string reason = "an operator asks";
  bool json = false;
  bool yes = false;                           // delete without asking
  bool quiet = false;                         // shows no progress
  absl::Duration timeout = absl::Seconds(5);  // of each short call
};

struct HooksOptions {
  std::string name;   // empty: all
  std::string check;  // a spec or @FILE; empty: list the hooks
  bool json = false;
  bool markdown = false;
};

// The options of `coxswain certs`.
struct CertsOptions {
  enum class Action { kInit, kAdd, kShow };
  Action action = Action::kInit;
  std::string dir = "coxswain-certs";
  std::vector<std::string> hosts;  // of the coordinator
  std::vector<std::string> jobs;
  int days = 365;
};

void AddOptions(CLI::App* app, ServeOptions* options);
void AddOptions(CLI::App* app, RunOptions* options);
void AddOptions(CLI::App* app, StatusOptions* options);
void AddOptions(CLI::App* app, LogsOptions* options);
void AddOptions(CLI::App* app, JobOptions* options);
void AddOptions(CLI::App* app, PlanSetOptions* options);
void AddOptions(CLI::App* app, PlanScheduleOptions* options);
void AddOptions(CLI::App* app, PlanCheckOptions* options);
void AddOptions(CLI::App* app, PlanMemoryOptions* options);
void AddOptions(CLI::App* app, HooksOptions* options);
// Declare the options of one action.
void AddOptions(CLI::App* app, CheckpointOptions::Action action,
                CheckpointOptions* options);

void AddCertsOptions(CLI::App* app, CertsOptions::Action action,
                     CertsOptions* options);

// Return what is wrong with the options together, and with the files; empty if
// nothing is. `coordinator` is HOST:PORT, or several with commas between.
std::string CheckSecurity(const ClientSecurity& security,
                          const std::string& coordinator);
std::string CheckSecurity(const ServeSecurity& security,
                          const std::string& listen);
std::string CheckCerts(const CertsOptions& options);

// Returns what is wrong with a job's name; empty if nothing is.
std::string CheckJob(const std::string& text);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_OPTIONS_H_
