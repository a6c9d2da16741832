#include "server/rpc/credentials.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/certificates.h"
#include "base/status_macros.h"
#include "grpc/grpc_security.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/server_credentials.h"
#include "transport/certificate_watch.h"

namespace coxswain::server {
namespace {

using grpc::experimental::TlsServerCredentialsOptions;

constexpr char kTokenHeader[] = "authorization";
constexpr absl::string_view kBearer = "Bearer ";
// A property of a connection whose certificate has been checked. It is kept in
// gRPC's record of the connection, which its calls share, and ends with it.
constexpr char kChecked[] = "coxswain_certificate_checked";

absl::string_view View(const grpc::string_ref& text) {
  return {text.data(), text.size()};
}

std::vector<std::string> PropertiesOf(const grpc::AuthContext& peer,
                                      const char* name) {
  std::vector<std::string> values;
  for (const grpc::string_ref& value : peer.FindPropertyValues(name)) {
    values.emplace_back(value.data(), value.size());
  }
  return values;
}

absl::StatusOr<Identity> ByCertificate(const grpc::AuthContext& peer) {
  const auto names = PropertiesOf(peer, GRPC_X509_CN_PROPERTY_NAME);
  const std::string proof = absl::StrCat(
      "by the certificate '", names.empty() ? "" : names.front(), "'");
  const auto subject =
      SubjectOf(PropertiesOf(peer, GRPC_PEER_URI_PROPERTY_NAME));
  if (!subject.has_value()) {
    return absl::UnauthenticatedError(
        absl::StrCat("the caller that came ", proof,
                     " is neither a job nor an operator here: it must have one "
                     "name of the kind URI that is ",
                     kOperatorUri, " or ", kJobUriPrefix,
                     "NAME. `coxswain certs` makes such certificates"));
  }
  return Identity{subject->is_operator, subject->job, proof};
}

std::optional<std::string> TokenOf(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kTokenHeader);
  if (found == metadata.end()) return std::nullopt;
  absl::string_view value = View(found->second);
  if (!absl::ConsumePrefix(&value, kBearer)) return std::nullopt;
  return std::string(value);
}

grpc_ssl_client_certificate_request_type WhatToAskFor(
    const SecurityOptions& options) {
  if (options.tls.ca.empty()) return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
  return options.tokens.empty()
             ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
             : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const SecurityOptions& options) {
  if (!options.encrypts()) return grpc::InsecureServerCredentials();
  auto certificates = CertificateWatch::Of(options.tls);
  COXSWAIN_RETURN_IF_ERROR(certificates->status());
  TlsServerCredentialsOptions tls(certificates->provider());
  tls.watch_identity_key_cert_pairs();
  if (!options.tls.ca.empty()) tls.watch_root_certs();
  tls.set_cert_request_type(WhatToAskFor(options));
  return Holding(std::move(certificates),
                 grpc::experimental::TlsServerCredentials(tls));
}

absl::StatusOr<std::shared_ptr<CallerIdentities>> CallerIdentities::Open(
    const SecurityOptions& options, const Clock* clock) {
  std::unique_ptr<TokenTable> tokens;
  if (!options.tokens.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(tokens, TokenTable::Open(options.tokens));
  }
  std::unique_ptr<TokenVerifier> verifier;
  if (!options.token_keys.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(
        verifier,
        TokenVerifier::Open(options.token_keys, options.token_rules, clock));
  }
  return std::shared_ptr<CallerIdentities>(
      new CallerIdentities(std::move(tokens), std::move(verifier), clock));
}

absl::StatusOr<Identity> CallerIdentities::ByToken(
    absl::string_view token) const {
  std::optional<Identity> identity = tokens_->Find(token);
  if (identity.has_value()) return *std::move(identity);
  if (verifier_ == nullptr || !LooksLikeWebToken(token)) {
    return absl::UnauthenticatedError(
        "the token is none of this coordinator's: it may have been replaced, "
        "or belong to another one. Put the present one into the file of "
        "--token-file; it is read again for each call");
  }
  COXSWAIN_ASSIGN_OR_RETURN(const std::string subject,
                            verifier_->SubjectOf(token));
  identity = tokens_->FindSubject(subject);
  if (identity.has_value()) return *std::move(identity);
  return absl::UnauthenticatedError(
      absl::StrCat("the token is good, but its subject, ", subject,
                   ", is neither a job nor an operator here: add the line "
                   "'job/NAME subject:",
                   subject, "' to the file of the coordinator's --tokens"));
}

absl::StatusOr<Identity> CallerIdentities::Of(
    const grpc::ServerContextBase& context) {
  const auto peer = context.auth_context();
  // Without encryption there is no peer, and no proof of identity.
  if (peer != nullptr && peer->IsPeerAuthenticated()) {
    MutexLock lock(&mutex_);
    return ByCertificate(*peer);
  }
  if (tokens_ == nullptr) {
    return absl::UnauthenticatedError(
        "no certificate came: give --tls-cert and --tls-key "
        "(COXSWAIN_TLS_CERT, COXSWAIN_TLS_KEY)");
  }
  const std::optional<std::string> token = TokenOf(context);
  if (!token.has_value()) {
    return absl::UnauthenticatedError(
        "neither a certificate nor a token came: give --token-file "
        "(COXSWAIN_TOKEN_FILE), or --tls-cert and --tls-key");
  }
  return ByToken(*token);
}

absl::Status CallerIdentities::CheckConnection(
    grpc::ServerContextBase* context) {
  const auto peer = context->auth_context();
  if (peer == nullptr || !peer->IsPeerAuthenticated()) return absl::OkStatus();
  MutexLock lock(&mutex_);
  if (!peer->FindPropertyValues(kChecked).empty()) return absl::OkStatus();
  const auto certificates =
      PropertiesOf(*peer, GRPC_X509_PEM_CERT_PROPERTY_NAME);
  COXSWAIN_RETURN_IF_ERROR(CheckNotExpired(
      certificates.empty() ? "" : certificates.front(), clock_->WallTime()));
  // What `peer` refers to; gRPC's C++ offers it only for reading.
  grpc_auth_context* const shared = grpc_call_auth_context(context->c_call());
  grpc_auth_context_add_cstring_property(shared, kChecked, "");
  grpc_auth_context_release(shared);
  return absl::OkStatus();
}

}  // namespace coxswain::server
