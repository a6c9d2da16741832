#ifndef COXSWAIN_CLIENT_RPC_CREDENTIALS_H_
#define COXSWAIN_CLIENT_RPC_CREDENTIALS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/tls_files.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/support/client_interceptor.h"

// Connections to the coordinator and to fallback coordinators, and this side's
// use of gRPC's credentials.

namespace coxswain {

// Returns whether connections to the coordinator, and to rank 0 in its place,
// are encrypted.
bool IsEncrypted(const ClientSecurity& security);

// Returns a connection of its own to the coordinator at HOST:PORT. gRPC
// connects, and connects again, when there is something to send. Files of
// certificates that change are taken within seconds if they are good, and those
// of before stay in use if they are not.
std::shared_ptr<grpc::Channel> MakeCoordinatorChannel(
    const std::string& address, const ClientSecurity& security = {});

// Returns the same to each of several, with commas between.
std::vector<std::shared_ptr<grpc::Channel>> MakeCoordinatorChannels(
    const std::string& addresses, const ClientSecurity& security);

// Returns the same to the fallback coordinator of this job.
std::shared_ptr<grpc::Channel> MakeFallbackChannel(
    const std::string& address, const ClientSecurity& security,
    const std::string& job);

// Has `connect` make a connection that is refused as soon as the peer has shown
// its certificates, which any authority may have signed, and returns these
// (PEM); empty if there were none. For a description of what is wrong: no call
// is made.
std::string ShownCertificates(
    const std::string& address, const TlsFiles& own,
    const std::function<void(const std::shared_ptr<grpc::Channel>&)>& connect);

// Returns the credentials of a fallback coordinator. Fails with
// FAILED_PRECONDITION if the coordinator authenticates its callers, and this
// worker has no certificate for its peers to check, and with INVALID_ARGUMENT
// if the files of certificates are not good. They are watched while the
// credentials live.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>>
MakeFallbackServerCredentials(const ClientSecurity& security);

// Returns OK if a peer may attach to the fallback coordinator of this job: over
// an encrypted connection by its certificate, over any other always, as callers
// are not authenticated there. Fails with PERMISSION_DENIED, or with
// UNAUTHENTICATED if the certificate has expired.
absl::Status AdmitToFallback(const grpc::ServerContextBase& context,
                             const ClientSecurity& security,
                             absl::string_view job);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_CREDENTIALS_H_
