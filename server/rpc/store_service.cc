#include "server/rpc/store_service.h"

#include <memory>
#include <string>
#include <utility>

#include "base/grpc_status.h"
#include "server/rpc/call.h"

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
      Finish(grpc::Status(grpc::StatusCode::CANCELLED,
                          "the client has ended the call"));
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

}  // namespace

StoreService::StoreService(KeyValueStore* store,
                           const FenceValidator* validator)
    : store_(store), validator_(validator) {}

StoreService::~StoreService() = default;

grpc::ServerUnaryReactor* StoreService::Set(
    grpc::CallbackServerContext* /*context*/, const v1::SetRequest* request,
    v1::SetResponse* response) {
  return Handle(validator_, request, response, [&](auto& by, auto& call) {
    store_->Set(by.fence, request->key(), request->value(), call->Done());
  });
}

grpc::ServerUnaryReactor* StoreService::Get(
    grpc::CallbackServerContext* /*context*/, const v1::GetRequest* request,
    v1::GetResponse* response) {
  return Handle(validator_, request, response, [&](auto& by, auto& call) {
    const KeyValueStore::CallId waiting = store_->Get(
        by.fence, request->key(), absl::Milliseconds(request->timeout_ms()),
        call->Done([](std::string value, auto* answer) {
          answer->set_value(std::move(value));
        }));
    call->OnceCancelled([this, waiting] { store_->Cancel(waiting); });
  });
}

grpc::ServerUnaryReactor* StoreService::Add(
    grpc::CallbackServerContext* /*context*/, const v1::AddRequest* request,
    v1::AddResponse* response) {
  return Handle(validator_, request, response, [&](auto& by, auto& call) {
    store_->Add(
        by.fence, request->key(), request->amount(),
        call->Done([](int64_t sum, auto* answer) { answer->set_value(sum); }));
  });
}

grpc::ServerUnaryReactor* StoreService::CompareSet(
    grpc::CallbackServerContext* /*context*/,
    const v1::CompareSetRequest* request, v1::CompareSetResponse* response) {
  return Handle(validator_, request, response, [&](auto& by, auto& call) {
    store_->CompareSet(by.fence, request->key(), request->expected(),
                       request->desired(),
                       call->Done([](CompareSetResult result, auto* answer) {
                         answer->set_value(std::move(result.value));
                         answer->set_swapped(result.swapped);
                       }));
  });
}

grpc::ServerUnaryReactor* StoreService::Wait(
    grpc::CallbackServerContext* /*context*/, const v1::WaitRequest* request,
    v1::WaitResponse* response) {
  return Handle(validator_, request, response, [&](auto& by, auto& call) {
    const KeyValueStore::CallId waiting =
        store_->Wait(by.fence, {request->keys().begin(), request->keys().end()},
                     absl::Milliseconds(request->timeout_ms()), call->Done());
    call->OnceCancelled([this, waiting] { store_->Cancel(waiting); });
  });
}

grpc::ServerUnaryReactor* StoreService::DeleteKey(
    grpc::CallbackServerContext* /*context*/,
    const v1::DeleteKeyRequest* request, v1::DeleteKeyResponse* response) {
  return Handle(validator_, request, response, [&](auto& by, auto& call) {
    store_->DeleteKey(by.fence, request->key(),
                      call->Done([](bool existed, auto* answer) {
                        answer->set_existed(existed);
                      }));
  });
}

grpc::ServerUnaryReactor* StoreService::CountKeys(
    grpc::CallbackServerContext* /*context*/,
    const v1::CountKeysRequest* request, v1::CountKeysResponse* response) {
  return Handle(validator_, request, response, [&](auto& by, auto& call) {
    const auto done = call->Done(
        [](int64_t count, auto* answer) { answer->set_count(count); });
    done(store_->CountKeys(by.fence, request->prefix()));
  });
}

grpc::ServerWriteReactor<v1::WatchEvent>* StoreService::Watch(
    grpc::CallbackServerContext* /*context*/, const v1::WatchRequest* request) {
  const Fence fence = FromProto(request->fence());
  const absl::Status admitted = validator_->Admit(fence).status();
  if (!admitted.ok()) return new RefusedStream<v1::WatchEvent>(admitted);
  const absl::StatusOr<KeyValueStore::CallId> watch =
      store_->OpenWatch(fence, request->key());
  if (!watch.ok()) return new RefusedStream<v1::WatchEvent>(watch.status());
  auto call = std::make_shared<WatchCall>(store_, *watch);
  call->Start();
  return call.get();
}

}  // namespace coxswain::server
