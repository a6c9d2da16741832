#ifndef COXSWAIN_SERVER_RPC_ATTACH_CALL_H_
#define COXSWAIN_SERVER_RPC_ATTACH_CALL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.pb.h"
#include "server/membership/membership.h"
#include "server/options/options.h"
#include "server/plan/plan_store.h"
#include "server/rpc/call.h"
#include "server/schedule/schedule_registry.h"
#include "server/telemetry/rpc_metrics.h"
#include "server/telemetry/telemetry.h"

namespace coxswain::server {

// Further receivers of the workers' progress, all or none of them.
struct AttachWitness {
  const PlanStore* plans = nullptr;
  Telemetry* telemetry = nullptr;
  RpcMetrics* messages = nullptr;
};

// The progress that the worker with this attachment reports, for the membership
// and the witness. Nothing happens if there is no such attachment any more.
void NoteHeartbeat(const v1::Heartbeat& heartbeat, uint64_t attachment,
                   const AttachWitness& witness, Membership* membership);

// One worker's Attach stream: hello, heartbeats and broken peers go to the
// membership table, positions, tickets and votes to the schedule registry;
// their events go out through a bounded queue. gRPC owns the stream until it is
// done; the table holds it while the worker is attached. Thread-safe.
class AttachCall
    : public grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachEvent>,
      public std::enable_shared_from_this<AttachCall> {
 public:
  // For gRPC, which calls OnDone() in the end.
  static AttachCall* Start(const RpcOptions& options, Membership* membership,
                           ScheduleRegistry* schedule,
                           const AttachWitness& witness,
                           grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  AttachCall(const RpcOptions& options, Membership* membership,
             ScheduleRegistry* schedule, const AttachWitness& witness)
      : options_(options),
        membership_(membership),
        schedule_(schedule),
        witness_(witness) {}

  // Returns whether to read on.
  bool HandleRequest();
  bool HandleHello(const v1::Hello& hello);
  // The messages of an attached worker.
  absl::Status HandleMessage(uint64_t attachment);
  // Keeps, and logs, and so puts into the journal, a ring that has not been
  // noted yet.
  void NoteRing(const std::string& ring);
  void HandleEvent(const AttachEvent& event);
  // The client is gone or has stopped sending: the worker is detached.
  void Disconnect(const absl::Status& status);
  // Ends the stream once what is queued has been sent.
  void Close(const absl::Status& status);
  // Starts the next write, or finishes, if it is time for that.
  void Advance();

  const RpcOptions options_;
  Membership* const membership_;
  ScheduleRegistry* const schedule_;
  const AttachWitness witness_;
  std::shared_ptr<AttachCall> self_;            // until OnDone
  std::optional<CallDeadline> hello_deadline_;  // reads set and end it
  v1::AttachRequest request_;                   // of the read under way
  AttachedRank attached_;                       // reads set and use it
  std::string ring_;                            // so do they these
  int rings_ = 0;
  v1::AttachEvent event_;  // of the write under way

  Mutex mutex_;
  std::deque<v1::AttachEvent> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t attachment_ ABSL_GUARDED_BY(mutex_) = 0;
  // Nothing is written before the answer to hello is in the queue.
  bool hello_answered_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_ATTACH_CALL_H_
