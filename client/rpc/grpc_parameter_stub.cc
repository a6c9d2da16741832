#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/crc32c.h"
#include "base/grpc_status.h"
#include "base/mutex.h"
#include "base/tensor_chunk.h"
#include "client/rpc/call_context.h"
#include "client/rpc/credentials.h"
#include "client/rpc/failover.h"
#include "client/rpc/parameter_stub.h"
#include "client/rpc/retry.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "proto/parameter.grpc.pb.h"
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

absl::Status TakePullChunk(const v1::Chunk& chunk, PulledParameter* pulled) {
  const auto received = static_cast<int64_t>(pulled->bytes.size());
  const auto size = static_cast<int64_t>(chunk.data().size());
  if (chunk.offset() != received || size > pulled->header.bytes() - received) {
    return absl::DataLossError(absl::StrCat(
        "a chunk of ", size, " bytes at ", chunk.offset(), " came after ",
        received, " of ", pulled->header.bytes(), " bytes of a parameter"));
  }
  if (Crc32c(chunk.data()) != chunk.crc32c()) {
    return absl::DataLossError(absl::StrCat("a chunk of a parameter at ",
                                            received,
                                            " does not match its checksum"));
  }
  pulled->bytes.append(chunk.data());
  return absl::OkStatus();
}

class GrpcParameterStub : public ParameterStub {
 public:
  GrpcParameterStub(std::string address,
                    const std::shared_ptr<grpc::Channel>& channel)
      : address_(std::move(address)), generic_(channel), stub_(channel) {}

  std::unique_ptr<ExchangeStream> Exchange(
      ExchangeCallbacks callbacks) override {
    return std::make_unique<GrpcExchangeStream>(&generic_,
                                                std::move(callbacks));
  }

  absl::StatusOr<bool> Push(const v1::PushHeader& header,
                            absl::string_view bytes,
                            const CallOptions& options) override {
    const ContextPtr context = MakeContext(options);
    const CancelLink link(options.cancel, context);
    v1::PushResponse response;
    const auto writer = stub_.Push(context.get(), &response);
    v1::PushRequest request;
    *request.mutable_header() = header;
    bool open = writer->Write(request);
    for (size_t sent = 0; open && sent < bytes.size();) {
      const absl::string_view piece = bytes.substr(sent, kTensorChunkBytes);
      request.mutable_chunk()->set_offset(static_cast<int64_t>(sent));
      request.mutable_chunk()->set_data(piece.data(), piece.size());
      request.mutable_chunk()->set_crc32c(Crc32c(piece));
      open = writer->Write(request);
      sent += piece.size();
    }
    writer->WritesDone();
    absl::Status status = link.Translate(writer->Finish());
    if (!status.ok()) return status;
    return response.complete();
  }

  absl::StatusOr<PulledParameter> Pull(const v1::PullRequest& request,
                                       const CallOptions& options) override {
    const ContextPtr context = MakeContext(options);
    const CancelLink link(options.cancel, context);
    const auto reader = stub_.Pull(context.get(), request);
    PulledParameter pulled;
    absl::Status taken;
    v1::PullResponse message;
    while (taken.ok() && reader->Read(&message)) {
      if (message.has_header()) {
        pulled.header = message.header();
      } else {
        taken = TakePullChunk(message.chunk(), &pulled);
      }
    }
    if (!taken.ok()) context->TryCancel();
    absl::Status status = link.Translate(reader->Finish());
    if (!taken.ok()) return taken;
    if (!status.ok()) return status;
    if (static_cast<int64_t>(pulled.bytes.size()) != pulled.header.bytes()) {
      return absl::DataLossError(absl::StrCat(pulled.bytes.size(),
                                              " bytes came of a parameter of ",
                                              pulled.header.bytes()));
    }
    return pulled;
  }

  std::string address() const override { return address_; }

 private:
  const std::string address_;
  grpc::GenericStub generic_;
  v1::Parameter::Stub stub_;
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
