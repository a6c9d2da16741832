#ifndef COXSWAIN_SERVER_RPC_CALL_H_
#define COXSWAIN_SERVER_RPC_CALL_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/grpc_status.h"
#include "base/mutex.h"
#include "grpc/grpc.h"
#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"
#include "server/generation/fence.h"
#include "server/rpc/proto_conversion.h"

namespace coxswain::server {

// Ends a call with DEADLINE_EXCEEDED after a time of the coordinator's own
// choice, whatever the client's deadline, unless it is destroyed before: for a
// client that sends nothing, or does not read. The call sees OnCancel. On the
// system clock, as all of gRPC is.
class CallDeadline {
 public:
  // `what` is for the client: what was not done in time.
  CallDeadline(grpc::CallbackServerContext* context, absl::Duration timeout,
               std::string what) {
    // The alarm may go off while the call ends: it holds the call, because the
    // context lives no longer than the call's last reaction.
    grpc_call_ref(context->c_call());
    const std::shared_ptr<grpc_call> call(context->c_call(), grpc_call_unref);
    what = absl::StrCat(what, " within ", absl::FormatDuration(timeout));
    alarm_.Set(
        std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout),
        [call, what = std::move(what)](bool expired) {
          if (!expired) return;
          grpc_call_cancel_with_status(
              call.get(), GRPC_STATUS_DEADLINE_EXCEEDED, what.c_str(), nullptr);
        });
  }
  CallDeadline(const CallDeadline&) = delete;
  CallDeadline& operator=(const CallDeadline&) = delete;

 private:
  grpc::Alarm alarm_;
};

// Answers a unary call at once.
inline grpc::ServerUnaryReactor* ReplyNow(grpc::CallbackServerContext* context,
                                          const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// A stream of responses that only ends, with the reason why it was refused.
template <typename Response>
class RefusedStream : public grpc::ServerWriteReactor<Response> {
 public:
  explicit RefusedStream(const absl::Status& status) {
    this->Finish(ToGrpcStatus(status));
  }
  void OnDone() override { delete this; }
};

// A unary call that is answered later, once, from any thread. gRPC owns the
// reactor until the call is done; code that may answer holds a shared_ptr, so a
// late answer or a late cancellation finds a living object and is ignored.
//
//   auto call = DeferredCall<JoinResponse>::Start(response);
//   uint64_t join_id = membership->Join(..., call->Done(fill));
//   call->OnceCancelled([=] { membership->Withdraw(join_id); });
//   return call->reactor();
//
// Thread-safe.
template <typename Response>
class DeferredCall
    : public grpc::ServerUnaryReactor,
      public std::enable_shared_from_this<DeferredCall<Response>> {
 public:
  static std::shared_ptr<DeferredCall> Start(Response* response) {
    std::shared_ptr<DeferredCall> call(new DeferredCall(response));
    call->self_ = call;
    return call;
  }

  grpc::ServerUnaryReactor* reactor() { return this; }

  // The first answer is sent; later ones are ignored.
  void Answer(absl::StatusOr<Response> result) {
    {
      MutexLock lock(&mutex_);
      if (answered_) return;
      answered_ = true;
      on_cancel_ = nullptr;
    }
    const absl::Status status = result.status();
    if (status.ok()) *response_ = *std::move(result);
    this->Finish(ToGrpcStatus(status));
  }

  // Returns the callback for a component whose answer has no fields.
  auto Done() {
    return [call = this->shared_from_this()](const absl::Status& status) {
      if (!status.ok()) return call->Answer(status);
      call->Answer(Response());
    };
  }

  // Returns the callback for a component that answers with a StatusOr: it sends
  // the error, or the response that `fill(value, &response)` has filled in.
  template <typename Fill>
  auto Done(Fill fill) {
    return
        [call = this->shared_from_this(), fill = std::move(fill)](auto result) {
          if (!result.ok()) return call->Answer(result.status());
          Response answer;
          fill(*std::move(result), &answer);
          call->Answer(std::move(answer));
        };
  }

  // Runs `on_cancel` once if the client cancels the call before the answer, at
  // once if it has already; then the call is answered with CANCELLED.
  void OnceCancelled(std::function<void()> on_cancel) {
    {
      MutexLock lock(&mutex_);
      if (answered_) return;
      if (!cancelled_) {
        on_cancel_ = std::move(on_cancel);
        return;
      }
    }
    on_cancel();
    Answer(absl::CancelledError("the client cancelled the call"));
  }

  void OnCancel() override {
    // gRPC keeps this object until the reaction has returned, but Answer()
    // lets OnDone run: hold it for the rest of the function.
    auto self = this->shared_from_this();
    std::function<void()> on_cancel;
    {
      MutexLock lock(&mutex_);
      cancelled_ = true;
      std::swap(on_cancel, on_cancel_);
    }
    if (on_cancel == nullptr) return;  // Answered, or OnceCancelled to come.
    on_cancel();
    Answer(absl::CancelledError("the client cancelled the call"));
  }

  void OnDone() override {
    // The last reference may be this one: it goes when `self` does.
    const std::shared_ptr<DeferredCall> self = std::move(self_);
  }

 private:
  explicit DeferredCall(Response* response) : response_(response) {}

  Response* const response_;
  std::shared_ptr<DeferredCall> self_;  // Until OnDone.
  Mutex mutex_;
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> on_cancel_ ABSL_GUARDED_BY(mutex_);
};

// The sender of a request whose fence was admitted.
struct Admitted {
  Fence fence;
  Caller caller;
};

// Handles a unary call of a member. One with a stale fence is refused before
// anything else of it is looked at; otherwise `ask(by, call)` asks a component,
// which answers `call` at once or later:
//
//   return Handle(validator_, request, response, [&](auto& by, auto& call) {
//     const uint64_t waiting = store_->Get(
//         by.fence, request->key(), timeout,
//         call->Done([](std::string value, auto* answer) {
//           answer->set_value(std::move(value));
//         }));
//     call->OnceCancelled([this, waiting] { store_->Cancel(waiting); });
//   });
template <typename Request, typename Response, typename Ask>
grpc::ServerUnaryReactor* Handle(const FenceValidator* validator,
                                 const Request* request, Response* response,
                                 const Ask& ask) {
  const std::shared_ptr<DeferredCall<Response>> call =
      DeferredCall<Response>::Start(response);
  const Fence fence = FromProto(request->fence());
  const absl::StatusOr<Caller> caller = validator->Admit(fence);
  if (caller.ok()) {
    const Admitted by{fence, *caller};
    ask(by, call);
  } else {
    call->Answer(caller.status());
  }
  return call->reactor();
}

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_CALL_H_
