#ifndef COXSWAIN_TESTS_SYSTEM_RESTART_WIRE_SERVER_H_
#define COXSWAIN_TESTS_SYSTEM_RESTART_WIRE_SERVER_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/fake_clock.h"
#include "grpcpp/grpcpp.h"
#include "proto/checkpoint.grpc.pb.h"
#include "proto/group.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/schedule.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "server/coordinator.h"
#include "server/state/owned_state.h"

namespace coxswain {

// Every call of a test ends within this, whatever happens.
struct Context : grpc::ClientContext {
  Context() {
    set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }
};

// A coordinator that can be restarted on its state, and clients of it over
// loopback. Its clock does not advance, so that nothing times out.
class WireServer {
 public:
  // Keeps the state in `state`, or where that is null in a file under `folder`.
  WireServer(const std::string& folder,
             std::shared_ptr<server::OwnedState> state);

  absl::Status Start();
  // Ends the coordinator: cleanly, or as if it was killed.
  void Stop(bool in_good_order);

  server::CoordinatorOptions& options() { return options_; }
  v1::Rendezvous::Stub& rendezvous() { return *rendezvous_; }
  v1::Schedule::Stub& schedule() { return *schedule_; }
  v1::Group::Stub& group() { return *group_; }
  v1::Store::Stub& store() { return *store_; }
  v1::Checkpoint::Stub& checkpoint() { return *checkpoint_; }

  // Returns all jobs. When it returns, earlier changes are stored.
  v1::DescribeResponse Describe();
  v1::GetPlanResponse PlanOf(const std::string& job);
  // Returns the fence of an operator.
  v1::Fence OperatorFence();

 private:
  FakeClock clock_;
  server::CoordinatorOptions options_;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::unique_ptr<v1::Rendezvous::Stub> rendezvous_;
  std::unique_ptr<v1::Schedule::Stub> schedule_;
  std::unique_ptr<v1::Group::Stub> group_;
  std::unique_ptr<v1::Store::Stub> store_;
  std::unique_ptr<v1::Checkpoint::Stub> checkpoint_;
};

// A worker as the wire sees it.
class WireWorker {
 public:
  WireWorker(WireServer* server, const std::string& job, int slot);

  v1::JoinRequest& request() { return request_; }
  const v1::JoinResponse& joined() const { return joined_; }
  // Returns a fence with the term that the last Attach was answered with.
  v1::Fence Fence() const;

  absl::Status Join();
  // Opens the stream and waits for the answer to its hello.
  absl::Status Attach();
  bool Write(const v1::AttachRequest& request) {
    return stream_->Write(request);
  }
  // Returns the next decision; skips other messages.
  absl::Status ReadDecision(v1::Decision* decision);
  absl::Status Leave(v1::LeaveRequest request);

 private:
  WireServer* const server_;
  v1::JoinRequest request_;
  v1::JoinResponse joined_;
  int64_t term_ = 0;
  std::unique_ptr<Context> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachEvent>>
      stream_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_RESTART_WIRE_SERVER_H_
