#ifndef COXSWAIN_CLIENT_RPC_CREDENTIALS_H_
#define COXSWAIN_CLIENT_RPC_CREDENTIALS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/tls_files.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/support/client_interceptor.h"

// All that this side knows of gRPC's credentials. For this folder only.
namespace coxswain {

// Whether connections are, to the coordinator and to a member that stands in.
bool IsEncrypted(const ClientSecurity& security);

// To the coordinator: encrypted if there is a certificate authority, which then
// must vouch for a certificate with the coordinator's host name. Files are read
// again, within seconds, when they change; connections that are there stay.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
    const ClientSecurity& security);

// To a member of this job that stands in: its certificate names no host, but
// the job (or an operator).
std::shared_ptr<grpc::ChannelCredentials> MakeStandInChannelCredentials(
    const ClientSecurity& security, absl::string_view job);

// What puts the token into each call; nothing if there is none, or if it would
// leave this machine in plain text (ClientSecurity::insecure).
std::vector<
    std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
MakeTokenInterceptors(const ClientSecurity& security,
                      const std::string& address);

// For a member that stands in. FAILED_PRECONDITION if the coordinator knows who
// calls, and this worker has no certificate for its peers to check.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>>
MakeStandInServerCredentials(const ClientSecurity& security);

// Whether a peer may come to a stand-in of this job: over an encrypted
// connection by its certificate, over any other always: where nobody is asked
// who he is. PERMISSION_DENIED, or UNAUTHENTICATED if it has run out.
absl::Status AdmitToStandIn(const grpc::ServerContextBase& context,
                            const ClientSecurity& security,
                            absl::string_view job);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_CREDENTIALS_H_
