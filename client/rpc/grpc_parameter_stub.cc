#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/tensor_chunk.h"
#include "client/rpc/call_context.h"
#include "client/rpc/grpc_channel.h"
#include "client/rpc/grpc_exchange_stream.h"
#include "client/rpc/parameter_stub.h"
#include "proto/parameter.grpc.pb.h"

namespace coxswain {
namespace {

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
    return OpenGrpcExchange(&generic_, std::move(callbacks));
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
  const std::vector<std::string> each = absl::StrSplit(addresses, ',');
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (const std::string& address : each) {
    channels.push_back(MakeCoordinatorChannel(address, security));
  }
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  do {
    for (size_t i = 0; i < channels.size(); ++i) {
      if (cancel != nullptr && !cancel->status().ok()) return cancel->status();
      if (channels[i]->WaitForConnected(std::chrono::system_clock::now() +
                                        absl::ToChronoMilliseconds(kTurn))) {
        return std::make_shared<GrpcParameterStub>(each[i], channels[i]);
      }
    }
  } while (Clock::Real()->Now() < deadline);
  return absl::UnavailableError(absl::StrCat(
      "cannot connect to the parameter service of the coordinator at ",
      addresses, " within ", absl::FormatDuration(timeout)));
}

}  // namespace coxswain
