#ifndef COXSWAIN_TRANSPORT_ACCEPTING_SERVER_H_
#define COXSWAIN_TRANSPORT_ACCEPTING_SERVER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "transport/connection_acceptor.h"
#include "transport/listen_address.h"

namespace coxswain {

// A gRPC server whose connections come through a ConnectionAcceptor: how both
// the coordinator and a worker's fallback coordinator listen. Thread-safe, but
// for StopAccepting(), which no other call may run beside.
class AcceptingServer {
 public:
  struct Options {
    Listeners listeners;
    ConnectionAcceptor::Limits limits;
    // Shared with the code that closes all of them.
    std::shared_ptr<AcceptedConnections> connections;
    std::shared_ptr<grpc::ServerCredentials> credentials;
    Preface preface = Preface::kHttp2;  // that of the credentials
    // Of the handshake of TLS, once its first bytes are there.
    absl::Duration handshake_timeout = absl::Seconds(10);
    int max_message_bytes = 4 << 20;
    // What gRPC may hold of all calls and their messages, whole or not. Beyond
    // it gRPC ends calls and idle connections of its own choice.
    int64_t max_held_bytes = 256 << 20;
    int max_streams_per_connection = 8;
    // An idle connection is probed after the first, and closed if no answer
    // comes within the second.
    absl::Duration keepalive_time = absl::Seconds(3);
    absl::Duration keepalive_timeout = absl::Seconds(5);
  };

  // Builds the services of `builder`, which outlive the server, into one that
  // listens. Fails with UNAVAILABLE if gRPC cannot start it or the system has
  // no more descriptors.
  static absl::StatusOr<std::unique_ptr<AcceptingServer>> Start(
      Options options, grpc::ServerBuilder* builder);

  // Calls Shutdown(0), unless that was called.
  ~AcceptingServer();
  AcceptingServer(const AcceptingServer&) = delete;
  AcceptingServer& operator=(const AcceptingServer&) = delete;

  grpc::Server& grpc() { return *server_; }
  // Stops listening. Connections that were accepted stay.
  void StopAccepting() { acceptor_.reset(); }
  // Stops listening, waits for calls to end, and cancels what is left after
  // `deadline`.
  void Shutdown(absl::Duration deadline);

 private:
  AcceptingServer() = default;

  // First, so that it ends last: it keeps the certificates up to date.
  std::shared_ptr<grpc::ServerCredentials> credentials_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> entrance_;
  // Ends first: gRPC would not close what comes after the server's end.
  std::unique_ptr<ConnectionAcceptor> acceptor_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TRANSPORT_ACCEPTING_SERVER_H_
