#ifndef COXSWAIN_BASE_OPENSSL_H_
#define COXSWAIN_BASE_OPENSSL_H_

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// For the files of this folder that use OpenSSL.

namespace coxswain {

// Deletes what a C library has made: std::unique_ptr<BIO, FreedBy<BIO_free>>.
template <auto Free>
struct FreedBy {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};

using Bio = std::unique_ptr<BIO, FreedBy<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, FreedBy<X509_free>>;
using EvpKey = std::unique_ptr<EVP_PKEY, FreedBy<EVP_PKEY_free>>;

// Takes OpenSSL's errors off its queue, so that they do not appear in another
// error; returns the first one's text.
std::string TakeOpenSslError();

// Returns INTERNAL: OpenSSL could not do this, and why.
absl::Status OpenSslFailed(absl::string_view what);

// Returns what reads this text, which outlives it.
Bio ReadingPem(absl::string_view text);

// Returns the next certificate, or null: then OpenSSL has an error.
Certificate NextCertificate(BIO* pem);

// Return the first certificate, or private key, of a PEM text. Fail with
// INVALID_ARGUMENT if there is none, and for a key with a passphrase, which is
// not asked for.
absl::StatusOr<Certificate> ParseCertificate(absl::string_view pem);
absl::StatusOr<EvpKey> ParseKey(absl::string_view pem);

// Return them as PEM text, keys without a passphrase.
absl::StatusOr<std::string> ToPem(X509* certificate);
absl::StatusOr<std::string> ToPem(EVP_PKEY* key);

// Returns whether a host is given by its address.
bool IsAddress(const std::string& host);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_OPENSSL_H_
