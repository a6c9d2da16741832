#ifndef COXSWAIN_SERVER_RPC_HEALTH_SERVER_H_
#define COXSWAIN_SERVER_RPC_HEALTH_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::server {

// A port of its own, in plain text, with grpc.health.v1 and nothing else: for
// probes that have no certificate. "" and "liveness" are served as long as this
// object lives, "readiness" while requests are answered, and "availability"
// also while another coordinator answers them, in whose place this one would
// step: what a roll-out waits for. Made by whoever runs a coordinator, before
// it, so that one that stands by is alive too. Thread-safe.
class HealthServer {
 public:
  // Listens on HOST:PORT (0: any free port). INVALID_ARGUMENT if it is no such
  // address, UNAVAILABLE if nobody can listen there.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Start(
      absl::string_view listen);

  ~HealthServer();
  HealthServer(const HealthServer&) = delete;
  HealthServer& operator=(const HealthServer&) = delete;

  int port() const;

  enum class State {
    kNeither,   // starts, ends, or does not reach its state; the first
    kStandsBy,  // for one that leads
    kLeads,     // and answers
  };
  void Set(State state);

 private:
  struct Parts;
  explicit HealthServer(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_HEALTH_SERVER_H_
