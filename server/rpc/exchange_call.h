#ifndef COXSWAIN_SERVER_RPC_EXCHANGE_CALL_H_
#define COXSWAIN_SERVER_RPC_EXCHANGE_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "grpcpp/grpcpp.h"
#include "proto/parameter.pb.h"
#include "server/generation/fence.h"
#include "server/options/options.h"
#include "server/parameter/collective_operation.h"
#include "server/parameter/outbox.h"
#include "server/parameter/parameter_store.h"
#include "server/rpc/call.h"

namespace coxswain::server {

// One Exchange stream: what comes goes to a participant of the store, and what
// the store has put into the outbox is written, one message at a time.
// Cancelled if the reader does not take a message within
// ParameterLimits::max_write_time, or within `end_grace` once the stream is to
// end. Held by itself until gRPC is done with it.
class ExchangeCall
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public std::enable_shared_from_this<ExchangeCall> {
 public:
  static ExchangeCall* Start(const RpcOptions& options,
                             ParameterStore* parameters,
                             const FenceValidator* validator,
                             grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  ExchangeCall(ParameterStore* parameters, const FenceValidator* validator,
               grpc::CallbackServerContext* context)
      : parameters_(parameters), validator_(validator), context_(context) {}

  absl::Status Take();
  absl::Status TakeOpen(const v1::ExchangeOpen& open);
  absl::Status TakeOperation(const v1::ExchangeOperation& operation);
  // Ends the stream once what is being written is, or after the grace; the
  // first end counts.
  void End(const absl::Status& status);
  // Writes the next message, or finishes, unless a write is under way.
  void Advance();
  // The next message to be written; false if there is none.
  bool NextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the write that is under way no more than the grace.
  void HastenLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ParameterStore* const parameters_;
  const FenceValidator* const validator_;
  // Valid until OnDone, and so at least until Finish.
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<ExchangeCall> self_;  // until OnDone
  std::optional<CallDeadline> open_deadline_;
  std::shared_ptr<Outbox> outbox_;
  // Of the reading side, which is one thread at a time.
  grpc::ByteBuffer request_;
  std::unique_ptr<ParameterStore::Participant> participant_;
  uint64_t reading_operation_ = 0;

  Mutex mutex_;
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;  // `opened` is to be sent
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // Of the write that is under way.
  std::optional<CallDeadline> write_deadline_ ABSL_GUARDED_BY(mutex_);
  bool hastened_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  uint64_t writing_operation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<Delivery> next_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer response_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_EXCHANGE_CALL_H_
