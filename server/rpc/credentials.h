#ifndef COXSWAIN_SERVER_RPC_CREDENTIALS_H_
#define COXSWAIN_SERVER_RPC_CREDENTIALS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "grpcpp/grpcpp.h"
#include "server/token/security.h"
#include "server/token/token_table.h"
#include "server/token/token_verifier.h"

namespace coxswain::server {

// All that the coordinator knows of gRPC's credentials.

// Returns the credentials of a server with these options. Files of certificates
// that change are taken within seconds if they are good, while the credentials
// live; connections that are there stay. Fails with INVALID_ARGUMENT, naming
// the file, if they are not good now.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const SecurityOptions& options);

// Identifies the caller. Thread-safe.
class CallerIdentities {
 public:
  // INVALID_ARGUMENT if the tokens, or the keys for them, cannot be read. By
  // the clock tokens run out; it outlives this.
  static absl::StatusOr<std::shared_ptr<CallerIdentities>> Open(
      const SecurityOptions& options, const Clock* clock);

  // By the certificate of the connection, else by the token of the call. Fails
  // with UNAUTHENTICATED, naming what is missing.
  absl::StatusOr<Identity> Of(const grpc::ServerContextBase& context)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Fails with UNAUTHENTICATED if the connection's certificate has run out: a
  // session of TLS is resumed without one. Checks it in the first call of each
  // connection only: those that are there stay.
  absl::Status CheckConnection(grpc::ServerContextBase* context)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  CallerIdentities(std::unique_ptr<TokenTable> tokens,
                   std::unique_ptr<TokenVerifier> verifier, const Clock* clock)
      : tokens_(std::move(tokens)),
        verifier_(std::move(verifier)),
        clock_(clock) {}

  absl::StatusOr<Identity> ByToken(absl::string_view token) const;

  const std::unique_ptr<TokenTable> tokens_;  // null: only certificates count
  const std::unique_ptr<TokenVerifier> verifier_;  // null: no tokens are signed
  const Clock* const clock_;
  // Guards the properties of all connections, which gRPC does not: calls read
  // them, and the first one of a connection adds one.
  Mutex mutex_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_CREDENTIALS_H_
