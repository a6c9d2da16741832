#ifndef COXSWAIN_SERVER_COORDINATOR_H_
#define COXSWAIN_SERVER_COORDINATOR_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/random.h"
#include "server/checkpoint/retention.h"
#include "server/options/options.h"
#include "server/parameter/parameter_limits.h"
#include "server/state/owned_state.h"
#include "server/store/store_limits.h"
#include "server/token/security.h"

namespace coxswain::server {

struct Components;

struct CoordinatorOptions {
  std::string listen = "127.0.0.1:0";  // HOST:PORT; port 0: any free one
  // Where checkpoints are kept, and the state too if `state` is null. Created
  // if missing.
  std::string state_dir;
  // Where the state is kept. Once it is not held any more this coordinator
  // sends nothing, and its owner must end it.
  std::shared_ptr<OwnedState> state;
  // Makes a state usable that is refused because the records of the cluster
  // cannot be read, as a new cluster; see RepairClusterRecords. Does nothing to
  // any other.
  bool repair_state = false;
  // How often deadlines are checked: much shorter than any of them.
  absl::Duration tick_interval = absl::Milliseconds(50);

  SecurityOptions security;
  MembershipOptions membership;
  PlanOptions plan;
  ScheduleLimits schedule;
  RpcOptions rpc;
  StoreLimits store;
  GroupLimits groups;
  CheckpointLimits checkpoints;
  // Of jobs that give no rules of their own.
  RetentionRules checkpoint_retention;
  ParameterLimits parameters;
  TelemetryLimits telemetry;
  // For the metrics: a few microseconds of each call.
  bool count_calls = false;

  // Must outlive the coordinator.
  Clock* clock = Clock::Real();
  RandomSource* random = RandomSource::System();

  // Fails with INVALID_ARGUMENT, naming the option that is out of range.
  absl::Status Validate() const;
};

// The whole service as a value: the components, the thread that checks their
// deadlines, and the gRPC server in front of them. Any number may live in one
// process, each on its own state_dir. Thread-safe.
class Coordinator {
 public:
  // Returns once requests are answered.
  //   INVALID_ARGUMENT     an option is out of range
  //   UNAVAILABLE          the address cannot be listened on, or the state is
  //                        in use by another coordinator
  //   FAILED_PRECONDITION, DATA_LOSS
  //                        the state cannot be used, and was left as it is
  //   ABORTED              the state is not held any more
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(
      const CoordinatorOptions& options);

  // Shuts down, if that was not done yet.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Returns the port that it listens on.
  int port() const;

  // For the status page and the metrics. Valid while the coordinator lives.
  const Components& view() const;

  // Answers all waiting calls with UNAVAILABLE, then ends; calls that are still
  // under way after `deadline` are cancelled. Safe to repeat.
  void Shutdown(absl::Duration deadline);

  // Ends at once and sends nothing, because another coordinator leads: all
  // connections are cut. Safe to repeat.
  void Abandon();

 private:
  struct Parts;  // Keeps gRPC out of this header.
  explicit Coordinator(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_COORDINATOR_H_
