#include "client/rpc/grpc_exchange_stream.h"

#include <optional>
#include <utility>

#include "base/grpc_status.h"
#include "base/mutex.h"
#include "client/rpc/call_context.h"
#include "grpcpp/grpcpp.h"
#include "proto/bulk/chunk_codec.h"

namespace coxswain {
namespace {

constexpr char kMethod[] = "/coxswain.v1.Parameter/Exchange";

class Reactor
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit Reactor(ExchangeCallbacks callbacks)
      : callbacks_(std::move(callbacks)) {}

  void Start(grpc::GenericStub* stub) {
    stub->PrepareBidiStreamingCall(&context_, kMethod, {}, this);
    AddHold();  // For the writes, which start outside of gRPC's callbacks.
    StartRead(&response_);
    StartCall();
  }

  // gRPC never calls back from within StartWrite, so it is safe under the lock,
  // which keeps it from running after the hold has gone.
  int64_t Write(grpc::ByteBuffer message) {
    const auto size = static_cast<int64_t>(message.Length());
    MutexLock lock(&mutex_);
    if (ended_) return 0;
    request_ = std::move(message);
    StartWrite(&request_);
    return size;
  }

  void Cancel() { context_.TryCancel(); }

  // Ends the stream and waits until no callback can run any more.
  void Stop() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
    }
    context_.TryCancel();
    MutexLock lock(&mutex_);
    // gRPC ends a cancelled call without waiting for anyone.
    done_cv_.WaitForWork(
        &mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return done_; });
  }

  void OnReadDone(bool ok) override {
    if (ok && HandleResponse()) {
      response_.Clear();
      StartRead(&response_);
      return;
    }
    {
      MutexLock lock(&mutex_);
      if (ended_) return;
      ended_ = true;
    }
    if (ok) context_.TryCancel();
    RemoveHold();
  }

  void OnWriteDone(bool ok) override {
    if (ok && !stopping()) callbacks_.on_written();
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status end =
        garbled_.ok() ? ExplainReset(FromGrpcStatus(status)) : garbled_;
    if (!stopping()) callbacks_.on_end(end);
    MutexLock lock(&mutex_);
    done_ = true;
    done_cv_.NotifyAll();
  }

 private:
  bool stopping() {
    MutexLock lock(&mutex_);
    return stopping_;
  }

  // False if it is no message of ours.
  bool HandleResponse() {
    ExchangeEvent event;
    const auto chunk = bulk::Decode(response_, &event.head);
    if (!chunk.ok()) {
      garbled_ = chunk.status();
      return false;
    }
    if (chunk->has_value()) {
      event.has_chunk = true;
      event.offset = (*chunk)->offset;
      event.crc32c = (*chunk)->crc32c;
      event.pieces = (*chunk)->data.pieces();
    }
    if (!stopping()) callbacks_.on_event(event);
    return true;
  }

  grpc::ClientContext context_;
  const ExchangeCallbacks callbacks_;
  grpc::ByteBuffer response_;
  absl::Status garbled_;  // of the reading side
  Mutex mutex_;
  CondVar done_cv_;
  grpc::ByteBuffer request_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

class GrpcExchangeStream : public ExchangeStream {
 public:
  GrpcExchangeStream(grpc::GenericStub* stub, ExchangeCallbacks callbacks)
      : reactor_(std::move(callbacks)) {
    reactor_.Start(stub);
  }
  ~GrpcExchangeStream() override { reactor_.Stop(); }

  int64_t Write(const v1::ExchangeRequest& request) override {
    return reactor_.Write(bulk::Encode(request));
  }
  int64_t WriteChunk(int64_t offset, uint32_t crc32c,
                     absl::string_view bytes) override {
    // Copied: the caller's memory may go before gRPC is done with it.
    return reactor_.Write(
        bulk::EncodeChunk(v1::ExchangeRequest::kChunkFieldNumber, offset,
                          crc32c, grpc::Slice(bytes.data(), bytes.size())));
  }
  void Cancel() override { reactor_.Cancel(); }

 private:
  Reactor reactor_;
};

}  // namespace

std::unique_ptr<ExchangeStream> OpenGrpcExchange(grpc::GenericStub* stub,
                                                 ExchangeCallbacks callbacks) {
  return std::make_unique<GrpcExchangeStream>(stub, std::move(callbacks));
}

}  // namespace coxswain
