#include "transport/accepting_server.h"

#include <chrono>
#include <cstddef>
#include <utility>

#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace coxswain {
namespace {

using Entrance = grpc::experimental::ExternalConnectionAcceptor;
using EntranceType =
    grpc::ServerBuilder::experimental_type::ExternalConnectionType;

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// Makes a server take no compressed messages: gRPC decompresses a message
// before it checks its size, and a thousand bytes may become a million. With
// this it decompresses nothing and compresses no answers, and ends each call
// that names an encoding with UNIMPLEMENTED, before its message is read. gRPC
// takes a message with the compressed flag, in a call that names none, as not
// compressed.
void RefuseCompression(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  // A server that compresses announces that it takes compressed messages as
  // well.
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
}

void Configure(const AcceptingServer::Options& options,
               grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(options.max_message_bytes);
  RefuseCompression(builder);
  grpc::ResourceQuota held("calls");
  held.Resize(static_cast<size_t>(options.max_held_bytes));
  builder->SetResourceQuota(held);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                              Milliseconds(options.handshake_timeout));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              options.max_streams_per_connection);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                              Milliseconds(options.keepalive_time));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              Milliseconds(options.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Clients probe as well, as often as they like. To refuse those that probe
  // too often costs more than to answer them, and memory (ADR 0033).
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AcceptingServer>> AcceptingServer::Start(
    Options options, grpc::ServerBuilder* builder) {
  Configure(options, builder);
  std::unique_ptr<AcceptingServer> result(new AcceptingServer);
  result->credentials_ = options.credentials;
  result->entrance_ = builder->experimental().AddExternalConnectionAcceptor(
      EntranceType::FROM_FD, options.credentials);
  result->server_ = builder->BuildAndStart();
  if (result->server_ == nullptr) {
    return absl::UnavailableError("gRPC cannot start a server");
  }
  auto accept = [entrance = result->entrance_.get()](UniqueFd connection) {
    Entrance::NewConnectionParameters parameters;
    parameters.fd = connection.Release();
    entrance->HandleNewConnection(&parameters);
  };
  COXSWAIN_ASSIGN_OR_RETURN(
      result->acceptor_,
      ConnectionAcceptor::Open(
          std::move(options.listeners), options.limits, std::move(accept),
          std::move(options.connections), options.preface));
  return result;
}

AcceptingServer::~AcceptingServer() {
  if (server_ != nullptr) Shutdown(absl::ZeroDuration());
}

void AcceptingServer::Shutdown(absl::Duration deadline) {
  acceptor_.reset();
  // The system clock is gRPC's own here.
  server_->Shutdown(std::chrono::system_clock::now() +
                    absl::ToChronoMilliseconds(deadline));
}

}  // namespace coxswain
