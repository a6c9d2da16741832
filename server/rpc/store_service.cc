#include "server/rpc/store_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/grpc_status.h"
#include "server/rpc/call.h"
#include "server/rpc/proto_conversion.h"

namespace coxswain::server {
namespace {

// One watch. Either a NextEvent waits in the store or a write is on its way,
// never both, so the steps need no lock. Held by itself until OnDone and by
// the callback in the store, whichever is longer.
class WatchCall : public grpc::ServerWriteReactor<v1::WatchEvent>,
                  public std::enable_shared_from_this<WatchCall> {
 public:
  WatchCall(KeyValueStore* store, KeyValueStore::CallId watch)
      : store_(store), watch_(watch) {}

  void Start() {
    self_ = shared_from_this();
    Next();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone"));
      return;
    }
    Next();
  }

  // Answers the waiting NextEvent; without one, the write ends and notices.
  void OnCancel() override { store_->CloseWatch(watch_); }

  void OnDone() override {
    store_->CloseWatch(watch_);
    const std::shared_ptr<WatchCall> self = std::move(self_);
  }

 private:
  void Next() {
    store_->NextEvent(
        watch_, [self = shared_from_this()](absl::StatusOr<StoreEvent> event) {
          self->Send(std::move(event));
        });
  }

  void Send(absl::StatusOr<StoreEvent> event) {
    if (!event.ok()) {
      Finish(ToGrpcStatus(event.status()));
      return;
    }
    message_.set_value(std::move(event->value));
    message_.set_deleted(event->deleted);
    StartWrite(&message_);
  }

  KeyValueStore* const store_;
  const KeyValueStore::CallId watch_;
  std::shared_ptr<WatchCall> self_;
  v1::WatchEvent message_;
};

// A watch that is refused.
class RefusedWatch : public grpc::ServerWriteReactor<v1::WatchEvent> {
 public:
  explicit RefusedWatch(const absl::Status& status) {
    Finish(ToGrpcStatus(status));
  }
  void OnDone() override { delete this; }
};

}  // namespace

StoreService::StoreService(KeyValueStore* store, const FenceGate* gate)
    : store_(store), gate_(gate) {}

StoreService::~StoreService() = default;

grpc::ServerUnaryReactor* StoreService::Set(
    grpc::CallbackServerContext* context, const v1::SetRequest* request,
    v1::SetResponse* response) {
  const Fence fence = FromProto(request->fence());
  const absl::Status admitted = gate_->Admit(fence).status();
  if (!admitted.ok()) return ReplyNow(context, admitted);
  auto call = DeferredCall<v1::SetResponse>::Start(response);
  store_->Set(fence, request->key(), request->value(),
              [call](const absl::Status& status) {
                if (!status.ok()) return call->Answer(status);
                call->Answer(v1::SetResponse());
              });
  return call->reactor();
}

grpc::ServerUnaryReactor* StoreService::Get(
    grpc::CallbackServerContext* context, const v1::GetRequest* request,
    v1::GetResponse* response) {
  const Fence fence = FromProto(request->fence());
  const absl::Status admitted = gate_->Admit(fence).status();
  if (!admitted.ok()) return ReplyNow(context, admitted);
  auto call = DeferredCall<v1::GetResponse>::Start(response);
  const KeyValueStore::CallId waiting = store_->Get(
      fence, request->key(), absl::Milliseconds(request->timeout_ms()),
      [call](absl::StatusOr<std::string> value) {
        if (!value.ok()) return call->Answer(value.status());
        v1::GetResponse answer;
        answer.set_value(*std::move(value));
        call->Answer(std::move(answer));
      });
  call->OnceCancelled([this, waiting] { store_->Cancel(waiting); });
  return call->reactor();
}

grpc::ServerUnaryReactor* StoreService::Add(
    grpc::CallbackServerContext* context, const v1::AddRequest* request,
    v1::AddResponse* response) {
  const Fence fence = FromProto(request->fence());
  const absl::Status admitted = gate_->Admit(fence).status();
  if (!admitted.ok()) return ReplyNow(context, admitted);
  auto call = DeferredCall<v1::AddResponse>::Start(response);
  store_->Add(fence, request->key(), request->amount(),
              [call](const absl::StatusOr<int64_t>& sum) {
                if (!sum.ok()) return call->Answer(sum.status());
                v1::AddResponse answer;
                answer.set_value(*sum);
                call->Answer(std::move(answer));
              });
  return call->reactor();
}

grpc::ServerUnaryReactor* StoreService::CompareSet(
    grpc::CallbackServerContext* context, const v1::CompareSetRequest* request,
    v1::CompareSetResponse* response) {
  const Fence fence = FromProto(request->fence());
  const absl::Status admitted = gate_->Admit(fence).status();
  if (!admitted.ok()) return ReplyNow(context, admitted);
  auto call = DeferredCall<v1::CompareSetResponse>::Start(response);
  store_->CompareSet(fence, request->key(), request->expected(),
                     request->desired(),
                     [call](absl::StatusOr<CompareSetResult> result) {
                       if (!result.ok()) return call->Answer(result.status());
                       v1::CompareSetResponse answer;
                       answer.set_value(std::move(result->value));
                       answer.set_swapped(result->swapped);
                       call->Answer(std::move(answer));
                     });
  return call->reactor();
}

grpc::ServerUnaryReactor* StoreService::Wait(
    grpc::CallbackServerContext* context, const v1::WaitRequest* request,
    v1::WaitResponse* response) {
  const Fence fence = FromProto(request->fence());
  const absl::Status admitted = gate_->Admit(fence).status();
  if (!admitted.ok()) return ReplyNow(context, admitted);
  const std::vector<std::string> keys(request->keys().begin(),
                                      request->keys().end());
  auto call = DeferredCall<v1::WaitResponse>::Start(response);
  const KeyValueStore::CallId waiting =
      store_->Wait(fence, keys, absl::Milliseconds(request->timeout_ms()),
                   [call](const absl::Status& status) {
                     if (!status.ok()) return call->Answer(status);
                     call->Answer(v1::WaitResponse());
                   });
  call->OnceCancelled([this, waiting] { store_->Cancel(waiting); });
  return call->reactor();
}

grpc::ServerUnaryReactor* StoreService::DeleteKey(
    grpc::CallbackServerContext* context, const v1::DeleteKeyRequest* request,
    v1::DeleteKeyResponse* response) {
  const Fence fence = FromProto(request->fence());
  const absl::Status admitted = gate_->Admit(fence).status();
  if (!admitted.ok()) return ReplyNow(context, admitted);
  auto call = DeferredCall<v1::DeleteKeyResponse>::Start(response);
  store_->DeleteKey(fence, request->key(),
                    [call](const absl::StatusOr<bool>& existed) {
                      if (!existed.ok()) return call->Answer(existed.status());
                      v1::DeleteKeyResponse answer;
                      answer.set_existed(*existed);
                      call->Answer(std::move(answer));
                    });
  return call->reactor();
}

grpc::ServerWriteReactor<v1::WatchEvent>* StoreService::Watch(
    grpc::CallbackServerContext* context, const v1::WatchRequest* request) {
  static_cast<void>(context);
  const Fence fence = FromProto(request->fence());
  const absl::Status admitted = gate_->Admit(fence).status();
  if (!admitted.ok()) return new RefusedWatch(admitted);
  const absl::StatusOr<KeyValueStore::CallId> watch =
      store_->OpenWatch(fence, request->key());
  if (!watch.ok()) return new RefusedWatch(watch.status());
  auto call = std::make_shared<WatchCall>(store_, *watch);
  call->Start();
  return call.get();
}

}  // namespace coxswain::server
