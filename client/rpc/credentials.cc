#include "client/rpc/credentials.h"

#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/certificates.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/watched_file.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"

namespace coxswain {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::FileWatcherCertificateProvider;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::TlsChannelCredentialsOptions;
using grpc::experimental::TlsCredentialsOptions;
using grpc::experimental::TlsCustomVerificationCheckRequest;
using grpc::experimental::TlsServerCredentialsOptions;

// How often gRPC looks whether a file has changed.
constexpr unsigned int kLookSeconds = 1;

std::shared_ptr<FileWatcherCertificateProvider> Watch(const TlsFiles& files) {
  return std::make_shared<FileWatcherCertificateProvider>(
      files.key, files.cert, files.ca, kLookSeconds);
}

void UseAll(const TlsFiles& files, TlsCredentialsOptions* options) {
  options->watch_root_certs();
  if (!files.cert.empty()) options->watch_identity_key_cert_pairs();
}

bool IsOfJob(const std::vector<grpc::string_ref>& names,
             absl::string_view job) {
  std::vector<std::string> uris;
  for (const grpc::string_ref& name : names) {
    uris.emplace_back(name.data(), name.size());
  }
  const auto subject = SubjectOf(uris);
  return subject.has_value() && (subject->is_operator || subject->job == job);
}

grpc::Status NotOfJob(absl::string_view job) {
  return grpc::Status(
      grpc::StatusCode::PERMISSION_DENIED,
      absl::StrCat("the peer's certificate is not one of job ", job));
}

// Instead of the host's name: who vouches has been checked before.
class OfJobVerifier : public ExternalCertificateVerifier {
 public:
  explicit OfJobVerifier(std::string job) : job_(std::move(job)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/,
              grpc::Status* status) override {
    *status =
        IsOfJob(request->uri_names(), job_) ? grpc::Status::OK : NotOfJob(job_);
    return true;  // decided at once
  }
  void Cancel(TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const std::string job_;
};

// The token as it is now, for all calls of a channel. Thread-safe.
class Token {
 public:
  explicit Token(std::string path) : file_(std::move(path)) {}

  // Empty if it cannot be read.
  std::string Get() {
    MutexLock lock(&mutex_);
    if (!file_.Changed()) return token_;
    auto text = file_.Read();
    token_ = text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
    if (!text.ok()) {
      LogWarning("token_not_read", {{"error", text.status().message()}});
    }
    return token_;
  }

 private:
  Mutex mutex_;
  WatchedFile file_ ABSL_GUARDED_BY(mutex_);
  std::string token_ ABSL_GUARDED_BY(mutex_);
};

class TokenBearer : public Interceptor {
 public:
  explicit TokenBearer(std::shared_ptr<Token> token)
      : token_(std::move(token)) {}

  void Intercept(InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(
            InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      const std::string token = token_->Get();
      if (!token.empty()) {
        batch->GetSendInitialMetadata()->emplace(
            "authorization", absl::StrCat("Bearer ", token));
      }
    }
    batch->Proceed();
  }

 private:
  const std::shared_ptr<Token> token_;
};

class TokenFactory : public ClientInterceptorFactoryInterface {
 public:
  explicit TokenFactory(std::shared_ptr<Token> token)
      : token_(std::move(token)) {}
  Interceptor* CreateClientInterceptor(ClientRpcInfo* /*info*/) override {
    return new TokenBearer(token_);  // gRPC owns it.
  }

 private:
  const std::shared_ptr<Token> token_;
};

}  // namespace

bool IsEncrypted(const ClientSecurity& security) {
  return !security.tls.ca.empty();
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
    const ClientSecurity& security) {
  if (!IsEncrypted(security)) return grpc::InsecureChannelCredentials();
  TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(security.tls));
  UseAll(security.tls, &options);
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> MakeStandInChannelCredentials(
    const ClientSecurity& security, absl::string_view job) {
  if (!IsEncrypted(security)) return grpc::InsecureChannelCredentials();
  TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(security.tls));
  UseAll(security.tls, &options);
  options.set_certificate_verifier(
      ExternalCertificateVerifier::Create<OfJobVerifier>(std::string(job)));
  options.set_check_call_host(false);
  return grpc::experimental::TlsCredentials(options);
}

std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>>
MakeTokenInterceptors(const ClientSecurity& security,
                      const std::string& address) {
  std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> factories;
  if (security.token_file.empty()) return factories;
  const std::string host = address.substr(0, address.rfind(':'));
  if (!IsEncrypted(security) && !security.insecure && !IsLoopbackHost(host)) {
    LogError("token_not_sent",
             {{"coordinator", address},
              {"reason", "everyone could read it on the way"},
              {"next", "give --tls-ca, or --insecure on a network you trust"}});
    return factories;
  }
  factories.push_back(std::make_unique<TokenFactory>(
      std::make_shared<Token>(security.token_file)));
  return factories;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>>
MakeStandInServerCredentials(const ClientSecurity& security) {
  if (!IsEncrypted(security)) {
    if (security.token_file.empty()) return grpc::InsecureServerCredentials();
    return absl::FailedPreconditionError(
        "a token proves nothing to peers in plain text: give --tls-ca, "
        "--tls-cert and --tls-key");
  }
  if (security.tls.cert.empty()) {
    return absl::FailedPreconditionError(
        "this worker has no certificate that its peers could check: give "
        "--tls-cert and --tls-key");
  }
  TlsServerCredentialsOptions options(Watch(security.tls));
  UseAll(security.tls, &options);
  options.set_cert_request_type(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

absl::Status AdmitToStandIn(const grpc::ServerContextBase& context,
                            const ClientSecurity& security,
                            absl::string_view job) {
  if (!IsEncrypted(security)) return absl::OkStatus();
  const auto peer = context.auth_context();
  if (peer == nullptr ||
      !IsOfJob(peer->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME), job)) {
    return absl::PermissionDeniedError(NotOfJob(job).error_message());
  }
  // Who resumes a session of TLS is not asked for a certificate again.
  const auto certificates =
      peer->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return certificates.empty() ? absl::OkStatus()
                              : CheckNotRunOut({certificates.front().data(),
                                                certificates.front().size()},
                                               Clock::Real()->WallTime());
}

}  // namespace coxswain
