#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/grpc_status.h"
#include "base/mutex.h"
#include "client/rpc/call_context.h"
#include "client/rpc/credentials.h"
#include "client/rpc/failover.h"
#include "client/rpc/parameter_stub.h"
#include "client/rpc/retry.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "transport/chunk_codec.h"

namespace coxswain {
namespace {

constexpr char kExchangeMethod[] = "/coxswain.v1.Parameter/Exchange";

class ExchangeReactor
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit ExchangeReactor(ExchangeCallbacks callbacks)
      : callbacks_(std::move(callbacks)) {}

  void Start(grpc::GenericStub* stub) {
    stub->PrepareBidiStreamingCall(&context_, kExchangeMethod, {}, this);
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
  ExchangeReactor reactor_;
};

class GrpcParameterStub : public ParameterStub {
 public:
  GrpcParameterStub(std::string address,
                    const std::shared_ptr<grpc::Channel>& channel)
      : address_(std::move(address)), stub_(channel) {}

  std::unique_ptr<ExchangeStream> Exchange(
      ExchangeCallbacks callbacks) override {
    return std::make_unique<GrpcExchangeStream>(&stub_, std::move(callbacks));
  }

  std::string address() const override { return address_; }

 private:
  const std::string address_;
  grpc::GenericStub stub_;
};

// How long one of several is waited for before the next one's turn.
constexpr absl::Duration kTurn = absl::Milliseconds(200);

}  // namespace

absl::StatusOr<std::shared_ptr<ParameterStub>> ConnectParameterStub(
    const std::string& addresses, const ClientSecurity& security,
    absl::Duration timeout, CancelSignal* cancel) {
  const ChannelPtrs channels = MakeCoordinatorChannels(addresses, security);
  const std::vector<std::string> each = absl::StrSplit(addresses, ',');
  Failover failover = FailoverOver(channels);
  std::shared_ptr<ParameterStub> stub;
  const auto attempt = [&](size_t at, const CallOptions& once) -> absl::Status {
    if (!channels[at]->WaitForConnected(
            std::chrono::system_clock::now() +
            absl::ToChronoMilliseconds(std::min(once.timeout, kTurn)))) {
      return absl::UnavailableError("no coordinator is there");
    }
    stub = std::make_shared<GrpcParameterStub>(each[at], channels[at]);
    return absl::OkStatus();
  };
  RetryPolicy without_pauses;  // each turn waits
  without_pauses.base = without_pauses.cap = absl::ZeroDuration();
  CallOptions options;
  options.timeout = timeout;
  options.cancel = cancel;
  absl::Status connected = CallWithRetries(
      without_pauses, options, "connecting to the parameter service", addresses,
      [&](absl::Duration left) {
        CallOptions round = options;
        round.timeout = left;
        return failover.Call(round, attempt);
      });
  if (!connected.ok()) return connected;
  return stub;
}

}  // namespace coxswain
