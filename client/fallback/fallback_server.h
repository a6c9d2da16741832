#ifndef COXSWAIN_CLIENT_FALLBACK_FALLBACK_SERVER_H_
#define COXSWAIN_CLIENT_FALLBACK_FALLBACK_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/tls_files.h"
#include "client/fallback/fallback_coordinator.h"

namespace coxswain {

// Attaches the other ranks to the fallback coordinator: Rendezvous.Attach over
// gRPC, and nothing else. Made by the session of rank 0. Thread-safe.
//
// What peers control is bounded: the size of a message, the streams of one
// connection, the streams that have not sent a hello (one more ends the
// oldest), and what waits for a rank that does not read (its attachment ends).
class FallbackServer {
 public:
  // Listens on any free port of this address, for members of this job. Fails
  // with UNAVAILABLE if it cannot listen, and with FAILED_PRECONDITION if
  // connections to the coordinator are encrypted and this worker has no
  // certificate.
  static absl::StatusOr<std::unique_ptr<FallbackServer>> Start(
      absl::string_view host, std::shared_ptr<FallbackCoordinator> coordinator,
      const std::string& job = "", const ClientSecurity& security = {});

  // Ends all streams, and waits for their end.
  ~FallbackServer();
  FallbackServer(const FallbackServer&) = delete;
  FallbackServer& operator=(const FallbackServer&) = delete;

  const std::string& address() const;  // host:port

 private:
  struct Parts;
  explicit FallbackServer(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_FALLBACK_FALLBACK_SERVER_H_
