#ifndef COXSWAIN_SERVER_HTTP_HEALTH_SERVER_H_
#define COXSWAIN_SERVER_HTTP_HEALTH_SERVER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::server {

// Answers probes over HTTP/1.1 on a port of its own, in plain text, to callers
// without a certificate: 200 or 503 to GET of
//   /liveness      as long as this object lives: 200
//   /readiness     200 while the coordinator answers requests
//   /availability  200 also while it stands by for another one that leads: what
//                  a roll-out waits for
// Owned by what runs a coordinator, and made before it: one that stands by is
// alive too. One thread, which only ever sees whole requests: a client that
// sends nothing, or half of one, delays no other. Thread-safe.
class HealthServer {
 public:
  // Listens on HOST:PORT (0: any free port). Fails with INVALID_ARGUMENT if it
  // is no such address, with UNAVAILABLE if it cannot be listened on.
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

#endif  // COXSWAIN_SERVER_HTTP_HEALTH_SERVER_H_
