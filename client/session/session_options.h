#ifndef COXSWAIN_CLIENT_SESSION_SESSION_OPTIONS_H_
#define COXSWAIN_CLIENT_SESSION_SESSION_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/random.h"
#include "base/tls_files.h"
#include "client/device/tensor.h"

namespace coxswain {

class Communicator;          // client/comm/communicator.h
struct CommunicatorOptions;  // client/comm/communicator.h
class CoordinatorStub;       // client/rpc/coordinator_stub.h

// Makes the stub of the coordinator at HOST:PORT, or of several with commas
// between, of which one leads. The stub makes no retries: the session does.
using StubFactory =
    std::function<std::shared_ptr<CoordinatorStub>(const std::string& address)>;

// A worker's identity, and the address of its coordinator. A launcher sets
// all of it through the environment; a program may also fill it in by hand.
struct SessionOptions {
  // Reads, as `coxswain run` sets them:
  //   COXSWAIN_COORDINATOR       HOST:PORT, or several with commas between;
  //                              required
  //   COXSWAIN_TLS_CA            security.tls.ca: PEM file; default: none, in
  //                              plain text
  //   COXSWAIN_TLS_CERT, COXSWAIN_TLS_KEY
  //                              security.tls.cert, .key; default: none
  //   COXSWAIN_TOKEN_FILE        security.token_file; default: none
  //   COXSWAIN_INSECURE          security.insecure: true or false; default
  //                              false
  //   COXSWAIN_JOB               the job's name; required
  //   COXSWAIN_NODE              identity.node; default: the host name
  //   COXSWAIN_LOCAL_RANK        identity.slot and local_rank; default 0
  //   COXSWAIN_LOCAL_WORLD_SIZE  workers on this node; default 1
  //   COXSWAIN_WORLD_SIZE        workers of the job; default: the manifest's
  //   COXSWAIN_MIN_WORLD_SIZE    the fewest it may run with; default: as many
  //   COXSWAIN_MESH              `mesh`, as in dp=*,shard=2; default: the
  //                              manifest's
  //   COXSWAIN_LOCAL_DEVICE      `device`: cpu, or the number of a GPU among
  //                              those that CUDA shows; default cpu
  //   COXSWAIN_ATTEMPT           `attempt`; default 0
  //   COXSWAIN_TOPOLOGY          `topology`, with commas between; default: none
  //   COXSWAIN_LAUNCHER_ID       a number, decimal or 0x...; default: none
  //   COXSWAIN_INCARNATION       likewise; default: random
  //   COXSWAIN_BACKEND           a name of client/comm/backends/registry.h;
  //                              default auto
  //   COXSWAIN_PLAIN_DATA        `plain_data`: true or false; default false
  //   COXSWAIN_BIND_ADDRESS      `address`; default: found by the route
  //   COXSWAIN_JOIN_TIMEOUT      such as 90s or 5m, or plain seconds; default
  //                              5m
  //   COXSWAIN_REATTACH_GRACE    likewise; default 30s
  //   COXSWAIN_TRACE             `trace_file`; default: none
  //   COXSWAIN_PLAN              `plan_overrides`, as NAME=VALUE words with
  //                              spaces between them; default: none
  //   NCCL_RAS_ADDR              `ras_address`
  // Empty counts as unset. Fails with INVALID_ARGUMENT, naming the variable,
  // its value and what it should be.
  static absl::StatusOr<SessionOptions> FromEnvironment();

  // Returns the same from any source: `get` returns the value, or nullptr.
  static absl::StatusOr<SessionOptions> FromVariables(
      const std::function<const char*(const char* name)>& get);

  std::string coordinator;  // HOST:PORT, or several with commas between
  // The security of connections to the coordinator. With a certificate, the
  // members of the job authenticate each other by theirs while one is the
  // fallback coordinator.
  ClientSecurity security;
  std::string job;
  WorkerIdentity identity;
  int local_rank = 0;
  int local_world_size = 1;
  int world_size = 0;      // 0: that of the manifest
  int min_world_size = 0;  // 0: that of the manifest
  // How the ranks are divided (base/mesh.h); empty: as the manifest has it.
  std::string mesh;
  // Where this worker's gradients are. All workers of a job use a GPU, or none
  // does, and those that do have one version of NCCL: otherwise Join fails. A
  // program that determines it by itself sets it before it joins.
  Device device;
  std::string nccl_version;  // empty, with a GPU: that of the library found
  // Where NCCL reports its state (RAS), HOST:PORT: read by rank 0 when a job on
  // GPUs stalls. Empty: the default, localhost:28028.
  std::string ras_address;
  // The number of the start of the whole job that this process belongs to:
  // workers of an earlier one than the latest are refused.
  int64_t attempt = 0;
  // The last generation that this process was a member of, and its size; 0:
  // none. Rejoin sets both.
  int64_t after_generation = 0;
  int after_world_size = 0;
  // Where this worker takes the state of the members while it waits as a spare,
  // HOST:PORT, and the secret that they show; empty: it takes none. Does not
  // concern a Rejoin.
  std::string catch_up_address;
  uint64_t catch_up_secret = 0;
  uint64_t launcher_id = 0;  // 0: none
  Incarnation incarnation;   // 0: random
  std::string host;          // for display; empty: the host name
  // Where this worker's data connections listen. Empty: the local address
  // that packets to the coordinator leave from.
  std::string address;
  // Where this worker is, from the widest place to the closest: ranks that
  // share more places are next to each other.
  std::vector<std::string> topology;

  // Settings of the launch that replace those of the program's manifest:
  // accumulation, hook, compression_start, and the terms of schedule/terms.h.
  // The hook is taken as it is written.
  std::map<std::string, std::string> plan_overrides;

  absl::Duration join_timeout = absl::Minutes(5);
  // Ends Join and Rejoin while they wait: they fail with its status, and the
  // coordinator drops this worker a moment later. May be null.
  std::shared_ptr<CancelSignal> cancel;
  std::string backend = "auto";
  // With TLS to the coordinator (security.tls.ca) workers encrypt what travels
  // between them by `tcp` or `two_level`, unless this is set, on all of them.
  bool plain_data = false;
  // The base name of the trace that a program writes of its steps, a file for
  // each rank (DistributedDataParallelOptions::trace_file); empty: none. The
  // session itself does not use it.
  std::string trace_file;
  // How long a communicator waits for peers, when connecting and within a
  // collective. ReducerOptions::timeout bounds gradient exchanges as well.
  absl::Duration collective_timeout = absl::Minutes(5);
  // How long a lost stream to the coordinator may take to come back.
  absl::Duration reattach_grace = absl::Seconds(30);
  // Whether the ranks agree among themselves, at rank 0, while the coordinator
  // cannot be reached: see docs/durability.md. Otherwise their next step waits.
  bool fallback = true;
  // How long the stream may be lost before they do, plus 1 ms per member.
  absl::Duration fallback_after = absl::Milliseconds(250);

  // For tests.
  const Clock* clock = Clock::Real();
  RandomSource* random = RandomSource::System();
  StubFactory stub_factory;  // empty: ConnectWithoutRetries
  // Connects the groups; empty: client/comm/backends does.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
      const std::string& backend, const CommunicatorOptions& options)>
      connect;
  absl::Duration notice_interval = absl::Seconds(10);
  absl::Duration retry_base = absl::Milliseconds(100);
  absl::Duration retry_cap = absl::Seconds(2);
  // Called with each notice that is logged while Join waits, on a thread of its
  // own.
  std::function<void(const std::string& notice)> on_waiting;
};

// Returns the local address that packets to HOST:PORT leave from, or to the
// first of several, with commas between, that has one. Fails with UNAVAILABLE
// if no host can be resolved or there is no route.
absl::StatusOr<std::string> LocalAddressTowards(absl::string_view host_ports);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_SESSION_OPTIONS_H_
