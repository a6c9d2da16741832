#include "base/certificates.h"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/openssl.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

using Names = std::unique_ptr<GENERAL_NAMES, FreedBy<GENERAL_NAMES_free>>;
using SslContext = std::unique_ptr<SSL_CTX, FreedBy<SSL_CTX_free>>;
using Store = std::unique_ptr<X509_STORE, FreedBy<X509_STORE_free>>;
using StoreContext =
    std::unique_ptr<X509_STORE_CTX, FreedBy<X509_STORE_CTX_free>>;

// Of a list of certificates that others own: a macro deletes it.
struct ListFree {
  void operator()(STACK_OF(X509) * list) const { sk_X509_free(list); }
};

absl::Time TimeOf(const ASN1_TIME* time) {
  tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::string Text(const ASN1_STRING* string) {
  return std::string(
      reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
      ASN1_STRING_length(string));
}

std::string TextOfAddress(const ASN1_OCTET_STRING* address) {
  const int family =
      ASN1_STRING_length(address) == sizeof(in6_addr) ? AF_INET6 : AF_INET;
  if (family == AF_INET && ASN1_STRING_length(address) != sizeof(in_addr)) {
    return "";
  }
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, ASN1_STRING_get0_data(address), text, sizeof(text));
  return text;
}

void ReadNames(X509* certificate, CertificateFacts* facts) {
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_URI) {
      facts->uris.push_back(Text(name->d.uniformResourceIdentifier));
    } else if (name->type == GEN_DNS) {
      facts->hosts.push_back(Text(name->d.dNSName));
    } else if (name->type == GEN_IPADD) {
      facts->hosts.push_back(TextOfAddress(name->d.iPAddress));
    }
  }
}

std::string NameOf(const X509_NAME* name) {
  char text[256] = "";
  X509_NAME_get_text_by_NID(name, NID_commonName, text, sizeof(text));
  return text;
}

// As OpenSSL does before it uses one, the `first` of a chain or another.
absl::Status CheckStrong(SSL_CTX* context, X509* certificate, bool first,
                         int number) {
  const bool taken = first ? SSL_CTX_use_certificate(context, certificate) == 1
                           : SSL_CTX_add1_chain_cert(context, certificate) == 1;
  if (taken) return absl::OkStatus();
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  const std::string why = reason == nullptr ? "unknown reason" : reason;
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(
      "certificate ", number, " in the file, '",
      NameOf(X509_get_subject_name(certificate)),
      "', is too weak for the TLS of this system (", why,
      "): make one with a key of P-256, or of RSA with 2048 bits or more, that "
      "is signed over SHA-256"));
}

// Returns all certificates in the text.
std::vector<Certificate> ParseAll(absl::string_view pem) {
  std::vector<Certificate> all;
  const Bio bio = ReadingPem(pem);
  while (true) {
    Certificate next = NextCertificate(bio.get());
    if (next == nullptr) break;
    all.push_back(std::move(next));
  }
  ERR_clear_error();  // that of the end
  return all;
}

}  // namespace

absl::StatusOr<CertificateFacts> ReadCertificate(absl::string_view pem) {
  COXSWAIN_ASSIGN_OR_RETURN(const Certificate certificate,
                            ParseCertificate(pem));
  CertificateFacts facts;
  facts.common_name = NameOf(X509_get_subject_name(certificate.get()));
  ReadNames(certificate.get(), &facts);
  facts.not_before = TimeOf(X509_get0_notBefore(certificate.get()));
  facts.not_after = TimeOf(X509_get0_notAfter(certificate.get()));
  return facts;
}

absl::Status CheckCertificates(absl::string_view pem) {
  // Text ends there for gRPC, and not for the rest of this function.
  if (absl::StrContains(pem, '\0')) {
    return absl::InvalidArgumentError("no PEM text: it has zero bytes");
  }
  const Bio bio = ReadingPem(pem);
  for (int whole = 0;; ++whole) {
    const Certificate certificate = NextCertificate(bio.get());
    if (certificate != nullptr) continue;
    // How OpenSSL reports that nothing more begins.
    const bool at_end =
        ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
    const std::string error = TakeOpenSslError();
    if (!at_end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "certificate ", whole + 1, " in the file is broken: ", error));
    }
    if (whole > 0) return absl::OkStatus();
    return absl::InvalidArgumentError("no certificate as PEM text");
  }
}

absl::Status CheckStrongChain(absl::string_view chain) {
  const SslContext context(SSL_CTX_new(TLS_method()));
  if (context == nullptr) return OpenSslFailed("check a certificate");
  int number = 0;
  for (const Certificate& one : ParseAll(chain)) {
    const bool first = ++number == 1;
    COXSWAIN_RETURN_IF_ERROR(
        CheckStrong(context.get(), one.get(), first, number));
  }
  return absl::OkStatus();
}

absl::Status CheckStrongAuthorities(absl::string_view ca) {
  const SslContext context(SSL_CTX_new(TLS_method()));
  if (context == nullptr) return OpenSslFailed("check a certificate");
  absl::Status weak;
  int number = 0;
  for (const Certificate& one : ParseAll(ca)) {
    absl::Status status = CheckStrong(context.get(), one.get(),
                                      /*first=*/false, ++number);
    if (status.ok()) return status;
    if (weak.ok()) weak = status;
  }
  return weak;
}

absl::Status CheckChainIsNotCut(absl::string_view chain,
                                absl::string_view before) {
  const std::vector<Certificate> shown = ParseAll(chain);
  const std::vector<Certificate> known = ParseAll(before);
  const auto is_here = [&](const X509_NAME* name) {
    return std::any_of(shown.begin(), shown.end(), [&](const auto& one) {
      return X509_NAME_cmp(X509_get_subject_name(one.get()), name) == 0;
    });
  };
  for (size_t i = 1; i < known.size(); ++i) {
    const X509_NAME* const issuer = X509_get_subject_name(known[i].get());
    // Peers have roots of their own.
    if (X509_self_signed(known[i].get(), /*verify_signature=*/0) == 1 ||
        is_here(issuer)) {
      continue;
    }
    for (const Certificate& one : shown) {
      if (X509_NAME_cmp(X509_get_issuer_name(one.get()), issuer) != 0) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "the certificate of '", NameOf(issuer), "', which has signed '",
          NameOf(X509_get_subject_name(one.get())),
          "', is missing behind it, where it was before: peers could not "
          "verify it. Add it to the file"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNotExpired(absl::string_view pem, absl::Time now) {
  const auto facts = ReadCertificate(pem);
  if (!facts.ok()) return absl::UnauthenticatedError(facts.status().message());
  if (now <= facts->not_after) return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat("the certificate '", facts->common_name, "' expired at ",
                   absl::FormatTime(facts->not_after, absl::UTCTimeZone()),
                   ": replace it with a new one, and connect again"));
}

absl::Status CheckSignedBy(absl::string_view chain, absl::string_view ca) {
  const std::vector<Certificate> shown = ParseAll(chain);
  const Store store(X509_STORE_new());
  const StoreContext context(X509_STORE_CTX_new());
  const std::unique_ptr<STACK_OF(X509), ListFree> between(sk_X509_new_null());
  if (shown.empty()) return absl::InvalidArgumentError("no certificate");
  if (store == nullptr || context == nullptr || between == nullptr) {
    return OpenSslFailed("check a certificate");
  }
  for (const Certificate& one : ParseAll(ca)) {
    X509_STORE_add_cert(store.get(), one.get());
  }
  for (const Certificate& one : shown) sk_X509_push(between.get(), one.get());
  X509_STORE_CTX_init(context.get(), store.get(), shown[0].get(),
                      between.get());
  X509_STORE_CTX_set_flags(context.get(), X509_V_FLAG_NO_CHECK_TIME);
  if (X509_verify_cert(context.get()) == 1) return absl::OkStatus();
  ERR_clear_error();
  return absl::InvalidArgumentError(
      X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get())));
}

bool NamesHost(absl::string_view pem, const std::string& host) {
  const auto certificate = ParseCertificate(pem);
  if (!certificate.ok()) return false;
  X509* const parsed = certificate->get();
  return IsAddress(host) ? X509_check_ip_asc(parsed, host.c_str(), 0) == 1
                         : X509_check_host(parsed, host.c_str(), host.size(), 0,
                                           nullptr) == 1;
}

std::optional<CertificateSubject> SubjectOf(
    const std::vector<std::string>& uris) {
  std::optional<CertificateSubject> found;
  for (const std::string& uri : uris) {
    absl::string_view job = uri;
    CertificateSubject subject;
    subject.is_operator = uri == kOperatorUri;
    if (!subject.is_operator) {
      if (!absl::ConsumePrefix(&job, kJobUriPrefix) || job.empty()) continue;
      subject.job = std::string(job);
    }
    if (found.has_value()) return std::nullopt;
    found = std::move(subject);
  }
  return found;
}

absl::Status CheckKeyBelongs(absl::string_view cert, absl::string_view key) {
  COXSWAIN_ASSIGN_OR_RETURN(const Certificate certificate,
                            ParseCertificate(cert));
  COXSWAIN_ASSIGN_OR_RETURN(const EvpKey private_key, ParseKey(key));
  if (X509_check_private_key(certificate.get(), private_key.get()) == 1) {
    return absl::OkStatus();
  }
  ERR_clear_error();
  return absl::InvalidArgumentError(
      "the private key is not that of the certificate");
}

absl::StatusOr<std::string> OnlyKey(absl::string_view key) {
  COXSWAIN_ASSIGN_OR_RETURN(const EvpKey private_key, ParseKey(key));
  return ToPem(private_key.get());
}

std::string Sha256(absl::string_view text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

bool SameInConstantTime(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() &&
         CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace coxswain
