// How certificates are made; base/certificates.cc has what reads them.

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/certificates.h"
#include "base/openssl.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

using Extension = std::unique_ptr<X509_EXTENSION, FreedBy<X509_EXTENSION_free>>;

constexpr int kSerialBytes = 16;
// X.509 counts from 0: this is version 3, which has extensions.
constexpr long kVersion3 = 2;  // NOLINT(runtime/int): as OpenSSL has it

bool SetTime(ASN1_TIME* target, absl::Time time) {
  return ASN1_TIME_set(target, absl::ToTimeT(time)) != nullptr;
}

bool SetName(X509_NAME* name, const std::string& common_name) {
  return X509_NAME_add_entry_by_txt(
             name, "CN", MBSTRING_UTF8,
             reinterpret_cast<const unsigned char*>(common_name.data()),
             static_cast<int>(common_name.size()), -1, 0) == 1;
}

// Random, so that none is guessed or used twice.
bool SetSerial(X509* certificate) {
  unsigned char bytes[kSerialBytes];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) return false;
  bytes[0] &= 0x7f;  // a positive number
  BIGNUM* const number = BN_bin2bn(bytes, sizeof(bytes), nullptr);
  const bool set =
      number != nullptr &&
      BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr;
  BN_free(number);
  return set;
}

bool AddExtension(X509* certificate, X509* issuer, int kind,
                  const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension != nullptr &&
         X509_add_ext(certificate, extension.get(), -1) == 1;
}

// Fails if the word has letters that would begin another name in OpenSSL's
// list.
absl::Status CheckWord(const std::string& word) {
  if (!word.empty() && word.find_first_of(", \t\n;") == std::string::npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", word, "' cannot be a name in a certificate"));
}

absl::StatusOr<std::string> AlternativeNames(
    const CertificateRequest& request) {
  std::vector<std::string> names;
  COXSWAIN_RETURN_IF_ERROR(CheckWord(request.uri));
  names.push_back(absl::StrCat("URI:", request.uri));
  for (const std::string& host : request.hosts) {
    COXSWAIN_RETURN_IF_ERROR(CheckWord(host));
    names.push_back(absl::StrCat(IsAddress(host) ? "IP:" : "DNS:", host));
  }
  return absl::StrJoin(names, ",");
}

// What is the same in every certificate; the issuer's name follows.
absl::StatusOr<Certificate> Begin(EVP_PKEY* key, const std::string& name,
                                  const Validity& validity) {
  Certificate certificate(X509_new());
  if (certificate == nullptr ||
      X509_set_version(certificate.get(), kVersion3) != 1 ||
      !SetSerial(certificate.get()) ||
      !SetTime(X509_getm_notBefore(certificate.get()), validity.not_before) ||
      !SetTime(X509_getm_notAfter(certificate.get()), validity.not_after) ||
      !SetName(X509_get_subject_name(certificate.get()), name) ||
      X509_set_pubkey(certificate.get(), key) != 1) {
    return OpenSslFailed("make a certificate");
  }
  return certificate;
}

absl::StatusOr<KeyPair> Sign(X509* certificate, EVP_PKEY* own,
                             EVP_PKEY* signer) {
  if (X509_sign(certificate, signer, EVP_sha256()) == 0) {
    return OpenSslFailed("sign a certificate");
  }
  KeyPair pair;
  COXSWAIN_ASSIGN_OR_RETURN(pair.cert, ToPem(certificate));
  COXSWAIN_ASSIGN_OR_RETURN(pair.key, ToPem(own));
  return pair;
}

absl::StatusOr<EvpKey> NewKey() {
  EvpKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslFailed("make a key");
  return key;
}

}  // namespace

absl::StatusOr<CertificateAuthority> CertificateAuthority::Create(
    const std::string& common_name, const Validity& validity) {
  COXSWAIN_ASSIGN_OR_RETURN(const EvpKey key, NewKey());
  COXSWAIN_ASSIGN_OR_RETURN(const Certificate certificate,
                            Begin(key.get(), common_name, validity));
  X509* const ca = certificate.get();
  if (X509_set_issuer_name(ca, X509_get_subject_name(ca)) != 1 ||
      !AddExtension(ca, ca, NID_basic_constraints,
                    "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(ca, ca, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !AddExtension(ca, ca, NID_subject_key_identifier, "hash")) {
    return OpenSslFailed("make a certificate authority");
  }
  COXSWAIN_ASSIGN_OR_RETURN(KeyPair pair, Sign(ca, key.get(), key.get()));
  return CertificateAuthority(std::move(pair));
}

absl::StatusOr<CertificateAuthority> CertificateAuthority::Load(KeyPair pair) {
  COXSWAIN_RETURN_IF_ERROR(CheckKeyBelongs(pair.cert, pair.key));
  return CertificateAuthority(std::move(pair));
}

absl::StatusOr<KeyPair> CertificateAuthority::Issue(
    const CertificateRequest& request) const {
  COXSWAIN_ASSIGN_OR_RETURN(const Certificate ca, ParseCertificate(pair_.cert));
  COXSWAIN_ASSIGN_OR_RETURN(const EvpKey ca_key, ParseKey(pair_.key));
  COXSWAIN_ASSIGN_OR_RETURN(const std::string names, AlternativeNames(request));
  COXSWAIN_ASSIGN_OR_RETURN(const EvpKey key, NewKey());
  COXSWAIN_ASSIGN_OR_RETURN(
      const Certificate certificate,
      Begin(key.get(), request.common_name, request.validity));
  X509* const leaf = certificate.get();
  if (X509_set_issuer_name(leaf, X509_get_subject_name(ca.get())) != 1 ||
      !AddExtension(leaf, ca.get(), NID_basic_constraints,
                    "critical,CA:FALSE") ||
      !AddExtension(leaf, ca.get(), NID_key_usage,
                    "critical,digitalSignature") ||
      !AddExtension(leaf, ca.get(), NID_ext_key_usage,
                    "clientAuth,serverAuth") ||
      !AddExtension(leaf, ca.get(), NID_authority_key_identifier, "keyid") ||
      !AddExtension(leaf, ca.get(), NID_subject_alt_name, names)) {
    return OpenSslFailed(absl::StrCat("make a certificate for ", names));
  }
  return Sign(leaf, key.get(), ca_key.get());
}

}  // namespace coxswain
