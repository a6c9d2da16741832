#ifndef COXSWAIN_SERVER_RPC_GRPC_SERVER_H_
#define COXSWAIN_SERVER_RPC_GRPC_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/options/options.h"
#include "server/token/security.h"
#include "transport/listen_address.h"

namespace coxswain::server {

struct Components;

// Returns how many bytes gRPC may hold of all calls and their messages:
// `max_held_bytes` where it is given; else a quarter of the `process_memory`
// bytes that this process may use, which leaves the rest to what the services
// keep, but at least 64 MiB, below which no job is served.
int64_t MaxHeldBytes(const RpcOptions& rpc, int64_t process_memory);

// All services of the wire contract, and the standard health and reflection
// services, on one port. Owned by the coordinator. Thread-safe.
class GrpcServer {
 public:
  // Called before anything is sent: once it returns false, all connections are
  // cut instead. Any thread; cheap.
  using MayAnswer = std::function<bool()>;

  // Listens and serves. The components outlive the server. UNAVAILABLE if the
  // address cannot be listened on, INVALID_ARGUMENT if the tokens, or the keys
  // for them, cannot be read.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const ListenAddress& address, const RpcOptions& options,
      Components* components, const MayAnswer& may_answer = nullptr,
      const SecurityOptions& security = {});

  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  int port() const;

  // Ends all connections at once: nothing is answered any more. Then
  // Shutdown().
  void Cut();
  // Answers health checks with "not serving" from now on.
  void StopServing();
  // Waits for calls to end, and cancels what is left after `deadline`. Once.
  void Shutdown(absl::Duration deadline);

 private:
  struct Parts;
  explicit GrpcServer(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_GRPC_SERVER_H_
