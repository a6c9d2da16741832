#include "client/rpc/credentials.h"

#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/certificates.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/tls_files.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "transport/bulk_channel.h"
#include "transport/certificate_watch.h"

namespace coxswain {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::TlsChannelCredentialsOptions;
using grpc::experimental::TlsCredentialsOptions;
using grpc::experimental::TlsCustomVerificationCheckRequest;
using grpc::experimental::TlsServerCredentialsOptions;

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

// Keeps what a peer shows, and refuses it. Thread-safe.
class CertificateKeeper : public ExternalCertificateVerifier {
 public:
  struct Shown {
    Mutex mutex;
    std::string chain ABSL_GUARDED_BY(mutex);
  };
  explicit CertificateKeeper(std::shared_ptr<Shown> shown)
      : shown_(std::move(shown)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/,
              grpc::Status* status) override {
    const grpc::string_ref chain = request->peer_cert_full_chain();
    MutexLock lock(&shown_->mutex);
    shown_->chain.assign(chain.data(), chain.size());
    *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                           "only its certificate was asked for");
    return true;  // decided at once
  }
  void Cancel(TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const std::shared_ptr<Shown> shown_;
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

// Null: in plain text.
using Certificates = std::shared_ptr<const CertificateWatch>;
Certificates CertificatesOf(const ClientSecurity& security) {
  return IsEncrypted(security) ? CertificateWatch::Of(security.tls) : nullptr;
}

// To the coordinator: encrypted if there is a certificate authority, which then
// must vouch for a certificate with the coordinator's host name.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
    const ClientSecurity& security, const Certificates& certificates) {
  if (certificates == nullptr) return grpc::InsecureChannelCredentials();
  TlsChannelCredentialsOptions options;
  options.set_certificate_provider(certificates->provider());
  UseAll(security.tls, &options);
  return grpc::experimental::TlsCredentials(options);
}

// To this job's fallback coordinator: its certificate names no host, but
// the job (or an operator).
std::shared_ptr<grpc::ChannelCredentials> MakeFallbackChannelCredentials(
    const ClientSecurity& security, const Certificates& certificates,
    absl::string_view job) {
  if (certificates == nullptr) return grpc::InsecureChannelCredentials();
  TlsChannelCredentialsOptions options;
  options.set_certificate_provider(certificates->provider());
  UseAll(security.tls, &options);
  options.set_certificate_verifier(
      ExternalCertificateVerifier::Create<OfJobVerifier>(std::string(job)));
  options.set_check_call_host(false);
  return grpc::experimental::TlsCredentials(options);
}

// Returns what puts the token into each call; nothing if there is none, or if
// it would leave this machine in plain text (ClientSecurity::insecure).
std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>>
MakeTokenInterceptors(const ClientSecurity& security,
                      const std::string& address) {
  std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> factories;
  if (security.token_file.empty()) return factories;
  const std::string host = address.substr(0, address.rfind(':'));
  if (!IsEncrypted(security) && !security.insecure && !IsLoopbackHost(host)) {
    LogError("token_not_sent",
             {{"coordinator", address},
              {"reason", "others on the network could read it"},
              {"next", "give --tls-ca, or --insecure on a network you trust"}});
    return factories;
  }
  factories.push_back(std::make_unique<TokenFactory>(
      std::make_shared<Token>(security.token_file)));
  return factories;
}

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  // A proxy of the environment is for the web, not for the cluster.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Stubs do not share a connection, nor its pauses after a failure.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Our callers pause between attempts; gRPC's default of up to two minutes
  // on top would make a late coordinator look dead.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Also how long a connection may take to be made: the host of a
  // coordinator that has stopped accepts it, and sends nothing.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  // Training may stand still until all are connected again.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  // One that was moved has the same name and another address: gRPC would ask
  // for it twice a minute.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  // Only callers know what may be repeated.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  bulk::ConfigureBulkChannel([&arguments](const char* name, int value) {
    arguments.SetInt(name, value);
  });
  // Errors travel, with their details, in the trailing metadata.
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, 64 << 10);
  // A coordinator whose host is gone, or that is frozen, sends nothing that
  // would end a stream: it is noticed within eight seconds, soon after a
  // standby has taken over. One that is busy with thousands of workers may take
  // seconds to answer a ping, and would only have more to do if they all came
  // again.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 3000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return arguments;
}

}  // namespace

bool IsEncrypted(const ClientSecurity& security) {
  return !security.tls.ca.empty();
}

std::shared_ptr<grpc::Channel> MakeCoordinatorChannel(
    const std::string& address, const ClientSecurity& security) {
  Certificates certificates = CertificatesOf(security);
  auto channel = grpc::experimental::CreateCustomChannelWithInterceptors(
      address, MakeChannelCredentials(security, certificates), Arguments(),
      MakeTokenInterceptors(security, address));
  return Holding(std::move(certificates), std::move(channel));
}

std::vector<std::shared_ptr<grpc::Channel>> MakeCoordinatorChannels(
    const std::string& addresses, const ClientSecurity& security) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (const absl::string_view address : absl::StrSplit(addresses, ',')) {
    channels.push_back(MakeCoordinatorChannel(std::string(address), security));
  }
  return channels;
}

std::shared_ptr<grpc::Channel> MakeFallbackChannel(
    const std::string& address, const ClientSecurity& security,
    const std::string& job) {
  Certificates certificates = CertificatesOf(security);
  auto channel = grpc::CreateCustomChannel(
      address, MakeFallbackChannelCredentials(security, certificates, job),
      Arguments());
  return Holding(std::move(certificates), std::move(channel));
}

std::string ShownCertificates(
    const std::string& address, const TlsFiles& own,
    const std::function<void(const std::shared_ptr<grpc::Channel>&)>& connect) {
  const auto shown = std::make_shared<CertificateKeeper::Shown>();
  TlsChannelCredentialsOptions options;
  Certificates certificates;  // held until the connection has been made
  if (!own.cert.empty()) {
    certificates = CertificateWatch::Of(own);
    options.set_certificate_provider(certificates->provider());
    options.watch_identity_key_cert_pairs();
  }
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      ExternalCertificateVerifier::Create<CertificateKeeper>(shown));
  connect(grpc::CreateCustomChannel(
      address, grpc::experimental::TlsCredentials(options), Arguments()));
  MutexLock lock(&shown->mutex);
  return shown->chain;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>>
MakeFallbackServerCredentials(const ClientSecurity& security) {
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
  Certificates certificates = CertificatesOf(security);
  COXSWAIN_RETURN_IF_ERROR(certificates->status());
  TlsServerCredentialsOptions options(certificates->provider());
  UseAll(security.tls, &options);
  options.set_cert_request_type(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return Holding(std::move(certificates),
                 grpc::experimental::TlsServerCredentials(options));
}

absl::Status AdmitToFallback(const grpc::ServerContextBase& context,
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
                              : CheckNotExpired({certificates.front().data(),
                                                 certificates.front().size()},
                                                Clock::Real()->WallTime());
}

}  // namespace coxswain
